// In reading order: preparing (Recipe -> JobPlan), launching, and the cache of kernels in the older
// form, which become plans of one step.
#include "launch/job_plan.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "hooks/allocator.h"
#include "hooks/storage.h"
#include "hooks/stream.h"
#include "launch/checked_program.h"

namespace spyre {
namespace {

namespace fs = std::filesystem;

// ---- Preparing --------------------------------------------------------------------------------

card::Address program_memory(const JobPlan& plan) {
  return reinterpret_cast<card::Address>(plan.allocation.get());
}

// The program at an offset of the program memory, read again only if its bytes are others.
const card::ParsedProgram& read_program(LoadedProgram& program, size_t offset,
                                        std::span<const std::byte> memory) {
  const bool same = program.parsed && program.bytes.size() <= memory.size() &&
                    std::memcmp(program.bytes.data(), memory.data(), program.bytes.size()) == 0;
  if (!same) {
    program.parsed = nullptr;
    program.checked = nullptr;
    program.parsed = card::parse_program({card::kProgramSegment + offset, memory});
    const auto own = memory.first(program.parsed->bytes);
    program.bytes.assign(own.begin(), own.end());
  }
  return *program.parsed;
}

void allocate_buffers(std::vector<PinnedBuffer>& buffers) {
  auto* allocator = at::detail::getPrivateUse1Hooks().getPinnedMemoryAllocator();
  for (auto& buffer : buffers) {
    buffer.data = allocator->allocate(buffer.size);
    std::memset(buffer.data.get(), 0, buffer.size);
  }
}

void submit_init(const JobPlanPtr& plan, size_t index, const InitTransfer& init, int stream) {
  auto& card = get_card(plan->device);
  std::byte* target = card.memory.host(program_memory(*plan) + init.offset);
  card.queue.submit(
      {.name = plan->label + " init " + std::to_string(index),
       .stream = stream,
       .engine = card::Engine::HOST_TO_CARD,
       .device_us = card.hardware.transfer_us(init.bytes->size()),
       .run = [plan, target,
               bytes = init.bytes] { std::memcpy(target, bytes->data(), bytes->size()); },
       .uses = {}});
}

// Whether a program is over on this host before another thread has woken up: a few tiles without
// loops.
bool is_small(const card::ParsedProgram& program) {
  constexpr int64_t kSmallElements = 16 * 1024;
  int64_t elements = 0;
  for (const auto& step : program.steps) {
    const auto* tile = std::get_if<card::TileStep>(&step.what);
    if (tile == nullptr) return false;
    elements += tile->elements;
  }
  return elements <= kSmallElements;
}

// Reads programs that initial transfers bring, for their modelled time. What is wrong with one is
// said when it runs, because a step before may still mend it.
void load_programs(JobPlan& plan, const std::vector<InitTransfer>& inits) {
  plan.programs.resize(plan.steps.size());
  plan.compute_us.resize(plan.steps.size());
  plan.small.resize(plan.steps.size());
  std::vector<std::byte> memory;
  for (const auto& init : inits) {
    memory.resize(std::max(memory.size(), init.offset + init.bytes->size()));
    std::copy(init.bytes->begin(), init.bytes->end(), memory.begin() + init.offset);
  }
  for (size_t i = 0; i < plan.steps.size(); i++) {
    const Step& step = plan.steps[i];
    if (step.type != StepType::COMPUTE || step.offset >= memory.size()) continue;
    try {
      read_program(plan.programs[i], step.offset, std::span(memory).subspan(step.offset));
      plan.compute_us[i] = plan.programs[i].parsed->device_us;
      plan.small[i] = is_small(*plan.programs[i].parsed);
    } catch (const card::ProgramError&) {
    }
  }
}

JobPlanPtr make_plan(std::string label, Recipe recipe, const c10::Stream& stream) {
  auto plan = std::make_shared<JobPlan>();
  const int stream_id = check_stream(stream);
  plan->label = std::move(label);
  plan->device = stream.device_index();
  plan->allocation_size = recipe.allocation_size;
  plan->allocation = allocate_on(plan->device, recipe.allocation_size);
  plan->buffers = std::move(recipe.buffers);
  allocate_buffers(plan->buffers);
  plan->steps = std::move(recipe.steps);
  load_programs(*plan, recipe.inits);
  for (size_t i = 0; i < recipe.inits.size(); i++) submit_init(plan, i, recipe.inits[i], stream_id);
  plan->last_use = get_card(plan->device).queue.record(stream_id);
  return plan;
}

// The last part of a path, also of one that ends in '/' or is "."
std::string directory_name(const fs::path& directory) {
  std::error_code error;
  auto full = fs::weakly_canonical(directory, error);
  return (error ? directory : full).filename().string();
}

// ---- Launching --------------------------------------------------------------------------------

// The tensors of a launch as the card sees them.
struct Arguments {
  std::vector<card::Address> addresses;
  std::vector<card::Block*> blocks;
};
using ArgumentsPtr = std::shared_ptr<const Arguments>;

// An argument is its storage: where a view begins in it is in the coordinates of the program,
// because the elements of a tiled storage are not in the order of the host.
ArgumentsPtr read_arguments(const std::vector<at::Tensor>& args, c10::DeviceIndex device) {
  auto arguments = std::make_shared<Arguments>();
  const c10::Device expected(kSpyre, device);
  for (size_t i = 0; i < args.size(); i++) {
    const at::Tensor& arg = args[i];
    TORCH_CHECK(arg.defined() && arg.device() == expected, "args[", i, "] must be a tensor on ",
                expected, ", the card of the kernel, found ",
                arg.defined() ? "one on " + arg.device().str() : "an undefined one");
    TORCH_CHECK(arg.has_storage() && arg.storage().device() == expected, "args[", i,
                "] must be a dense tensor with memory on ", expected, ", found layout ",
                arg.layout(), arg.has_storage() ? " without device memory" : "");
    auto& storage = *spyre_storage(arg);
    arguments->addresses.push_back(reinterpret_cast<card::Address>(storage.data()));
    if (auto* block = storage.block()) arguments->blocks.push_back(block);
  }
  return arguments;
}

// What the vendor's host step computes from `hcm` is not published. Ours defines it as the
// identity: the output buffer receives the input, followed by zeros. An input of the launch's
// tensors is the list of their device addresses, int64 each, which is what a program correction
// needs.
void run_host_compute(const JobPlan& plan, const Step& step, const Arguments& arguments) {
  const void* input = nullptr;
  size_t bytes = 0;
  if (step.input == HostInput::BUFFER) {
    input = plan.buffers[step.input_buffer].bytes();
    bytes = plan.buffers[step.input_buffer].size;
  } else if (step.input == HostInput::ADDRESSES) {
    input = arguments.addresses.data();
    bytes = arguments.addresses.size() * sizeof(card::Address);
  }
  std::byte* output = plan.buffers[step.buffer].bytes();
  if (bytes > 0) std::memcpy(output, input, bytes);
  std::memset(output + bytes, 0, step.size - bytes);
}

void run_checked(JobPlan& plan, size_t index, const Arguments& arguments, card::Card& card,
                 const card::RunEnvironment& environment) {
  LoadedProgram& program = plan.programs[index];
  if (!program.checked) {
    // Programs that keep scratchpads in one piece have another form, on the scratchpads themselves.
    const std::vector<std::byte> other = read_program_to_check(plan.directory);
    program.parsed_to_check =
        other.empty() ? program.parsed : card::parse_program({card::kProgramSegment, other});
    program.checked =
        read_checked_program(plan.directory, plan.label, other.empty() ? program.bytes : other);
  }
  card::CheckedLaunch launch(*card.sanitizer, program.checked, arguments.addresses);
  card::run_program(*program.parsed_to_check, arguments.addresses, environment, &card.counters,
                    &launch);
  launch.finish();
}

void run_compute(JobPlan& plan, size_t index, const Arguments& arguments, card::Card& card) {
  const size_t offset = plan.steps[index].offset;
  const std::byte* bytes = card.memory.host(program_memory(plan) + offset);
  const auto& program =
      read_program(plan.programs[index], offset, {bytes, plan.allocation_size - offset});
  card.counters.add({.device_us = card.hardware.job_us, .launches = 1});
  const card::RunEnvironment environment{.memory = card.memory,
                                         .pool = thread_pool(),
                                         .numerics = numerics(),
                                         .lx = card.lx.by_core(),
                                         .shared = card.lx.shared(),
                                         .translates = settings().translate,
                                         .pairs = adds_pairs()};
  if (card.sanitizer->is_enabled()) {
    return run_checked(plan, index, arguments, card, environment);
  }
  card::run_program(program, arguments.addresses, environment, &card.counters);
}

void run_step(JobPlan& plan, size_t index, const Arguments& arguments, card::Card& card) {
  const Step& step = plan.steps[index];
  switch (step.type) {
    case StepType::HOST_COMPUTE:
      return run_host_compute(plan, step, arguments);
    case StepType::COMPUTE:
      return run_compute(plan, index, arguments, card);
    case StepType::H2D:
      std::memcpy(card.memory.host(program_memory(plan) + step.offset),
                  plan.buffers[step.buffer].bytes(), step.size);
      return;
    case StepType::D2H:
      std::memcpy(plan.buffers[step.buffer].bytes(),
                  card.memory.host(program_memory(plan) + step.offset), step.size);
      return;
  }
}

card::Engine engine_of(StepType type) {
  switch (type) {
    case StepType::H2D:
      return card::Engine::HOST_TO_CARD;
    case StepType::D2H:
      return card::Engine::CARD_TO_HOST;
    case StepType::COMPUTE:
      return card::Engine::COMPUTE;
    default:
      return card::Engine::NONE;
  }
}

// The modelled time must be known when a step is queued: that of a program is the one that it had
// when the plan was made.
double step_us(const JobPlan& plan, size_t index, const card::Hardware& hardware) {
  const Step& step = plan.steps[index];
  if (step.type == StepType::HOST_COMPUTE) return 0;
  if (step.type == StepType::COMPUTE) return hardware.job_us + plan.compute_us[index];
  return hardware.transfer_us(step.size);
}

void check_addresses_fit(const JobPlan& plan, const Arguments& arguments) {
  const size_t bytes = arguments.addresses.size() * sizeof(card::Address);
  for (size_t i = 0; i < plan.steps.size(); i++) {
    const Step& step = plan.steps[i];
    TORCH_CHECK(step.input != HostInput::ADDRESSES || bytes <= step.size, plan.label, " step ", i,
                ": the addresses of ", arguments.addresses.size(), " arguments take ", bytes,
                " bytes, but its 'size' is ", step.size);
  }
}

void submit_step(const JobPlanPtr& plan, size_t index, const ArgumentsPtr& arguments, int stream,
                 card::Card& card) {
  const Step& step = plan->steps[index];
  card::Job job;
  job.name = plan->label + " step " + std::to_string(index);
  job.stream = stream;
  job.engine = engine_of(step.type);
  job.device_us = step_us(*plan, index, card.hardware);
  if (step.type == StepType::COMPUTE) {
    job.uses = arguments->blocks;  // no other step touches them
    job.small = plan->small[index];
    job.pool = &thread_pool();
  }
  job.run = [plan, index, arguments, &card] { run_step(*plan, index, *arguments, card); };
  card.queue.submit(std::move(job));
}

// ---- The older form of a kernel ---------------------------------------------------------------

using KernelKey = std::pair<std::string, c10::DeviceIndex>;
struct KernelCache {
  std::mutex mutex;
  std::map<KernelKey, JobPlanPtr> plans;
};

// Never destroyed: at exit the cards may still be running kernels of it.
KernelCache& kernel_cache() {
  static auto* cache = new KernelCache();
  return *cache;
}

// Reading the files is done under the lock: a second thread gets the plan instead of another one.
JobPlanPtr cached_kernel(const fs::path& directory, c10::DeviceIndex device) {
  auto& cache = kernel_cache();
  std::lock_guard<std::mutex> lock(cache.mutex);
  // With a '/' at the end, however it is spelled: "a", "a/" and "a/." are one directory.
  const auto key = fs::absolute(directory / "").lexically_normal().string();
  auto& plan = cache.plans[{key, device}];
  if (!plan) {
    const std::string name = directory_name(directory);
    plan = make_plan("kernel " + name, read_hex_kernel(directory, name), current_stream(device));
  }
  return plan;
}

}  // namespace

std::string JobPlan::repr() const {
  return "<JobPlan steps=" + std::to_string(steps.size()) +
         " job_allocation_size=" + std::to_string(allocation_size) +
         " expected_inputs=0 pinned_buffers=" + std::to_string(buffers.size()) + ">";
}

const PinnedBuffer* JobPlan::find_buffer(const std::string& handle) const {
  for (const auto& buffer : buffers) {
    if (buffer.handle == handle) return &buffer;
  }
  return nullptr;
}

JobPlanPtr prepare_kernel(const fs::path& directory, std::optional<c10::Stream> stream) {
  Recipe recipe = read_spyrecode(directory);
  auto plan = make_plan("job plan " + directory_name(directory), std::move(recipe),
                        stream ? *stream : current_stream(current_device()));
  plan->directory = directory;
  return plan;
}

void launch(const JobPlanPtr& plan, const std::vector<at::Tensor>& args) {
  const auto arguments = read_arguments(args, plan->device);
  check_addresses_fit(*plan, *arguments);
  auto& card = get_card(plan->device);
  const int stream = current_stream_id(plan->device);
  std::lock_guard<std::mutex> lock(plan->launching);
  if (plan->last_use.stream != stream) card.queue.wait(stream, plan->last_use);
  for (size_t i = 0; i < plan->steps.size(); i++) submit_step(plan, i, arguments, stream, card);
  plan->last_use = card.queue.record(stream);
}

void launch_kernel(const fs::path& directory, const std::vector<at::Tensor>& args) {
  const bool on_card = !args.empty() && args[0].defined() && args[0].device().type() == kSpyre;
  const auto device = on_card ? args[0].device().index() : current_device();
  get_card(device);  // starts the runtime now: free_runtime() takes its lock before the cache's
  launch(cached_kernel(directory, device), args);
}

void clear_kernel_cache() {
  std::map<KernelKey, JobPlanPtr> dropped;
  auto& cache = kernel_cache();
  std::lock_guard<std::mutex> lock(cache.mutex);
  dropped.swap(cache.plans);
}

}  // namespace spyre
