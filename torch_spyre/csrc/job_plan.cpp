// In reading order: the manifest (spyrecode.json -> Recipe), preparing (Recipe -> JobPlan),
// launching, and the older form of a kernel, which becomes a plan of one step.
#include "job_plan.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "allocator.h"
#include "card/program.h"
#include "json.h"
#include "storage.h"
#include "stream.h"

namespace spyre {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

// ---- Files ------------------------------------------------------------------------------------

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

template <typename Container>
Container read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<std::streamoff>(file.tellg());
  Container content(size > 0 ? static_cast<size_t>(size) : 0, typename Container::value_type{});
  file.seekg(0);
  file.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(content.size()));
  TORCH_CHECK(file.good(), "cannot read ", path.string());
  return content;
}

// ---- The manifest -----------------------------------------------------------------------------

struct InitTransfer {
  size_t offset = 0;  // into the program memory
  std::shared_ptr<const Bytes> bytes;
};

// What a plan consists of, checked, before anything is allocated.
struct Recipe {
  size_t allocation_size = 0;
  std::vector<InitTransfer> inits;
  std::vector<PinnedBuffer> buffers;  // without memory yet
  std::vector<Step> steps;

  std::optional<size_t> find_buffer(const std::string& handle) const {
    for (size_t i = 0; i < buffers.size(); i++) {
      if (buffers[i].handle == handle) return i;
    }
    return std::nullopt;
  }
};

// One entry of a plan in the manifest. Its errors say which.
class Entry {
 public:
  Entry(std::string where, const Json& json) : where_(std::move(where)) {
    TORCH_CHECK(json.object(), where_, ": expected an object, found ", json.describe());
    command_ = text_of(member(json, "command", "entry"), "command");
    const Json& properties = member(json, "properties", command_ + " command");
    TORCH_CHECK(properties.object(), where_, ": 'properties' of ", command_,
                " must be an object, found ", properties.describe());
    properties_ = &properties;
  }

  const std::string& command() const { return command_; }

  template <typename... Text>
  void check(bool condition, const Text&... text) const {
    TORCH_CHECK(condition, where_, ": ", command_, ": ", text...);
  }

  const Json& property(const char* name) const {
    return member(*properties_, name, command_ + " command");
  }

  const std::string& text(const char* name) const { return text_of(property(name), name); }

  uint64_t number(const char* name) const { return number_of(property(name), name); }

  size_t size(const char* name) const {
    const uint64_t bytes = number(name);
    check(bytes > 0, "'", name, "' is '0'; allowed: 1 byte or more");
    return bytes;
  }

  // Where a pointer into the program segment leads to in the allocation.
  size_t offset(const char* name, size_t bytes, size_t allocation) const {
    const uint64_t pointer = number(name);
    const std::string shown = "'" + std::string(name) + "' = '" + std::to_string(pointer) + "' (" +
                              card::hex_address(pointer) + ")";
    check(pointer >= card::kProgramSegment && pointer < card::kProgramSegmentEnd, shown,
          " is out of the program segment; allowed: [", card::hex_address(card::kProgramSegment),
          ", ", card::hex_address(card::kProgramSegmentEnd), ")");
    const uint64_t offset = pointer - card::kProgramSegment;
    check(offset <= allocation && bytes <= allocation - offset, shown, " with ", bytes,
          bytes == 1 ? " byte" : " bytes", " goes beyond the allocation; allowed: up to ",
          card::hex_address(card::kProgramSegment + allocation), " (", allocation,
          " bytes allocated)");
    return offset;
  }

  uint64_t number_of(const Json& json, const std::string& name) const {
    const std::string* text = json.string();
    const bool digits =
        text && !text->empty() &&
        std::all_of(text->begin(), text->end(), [](char c) { return c >= '0' && c <= '9'; });
    check(digits, "'", name, "' must be a decimal string like \"128\", found ", json.describe());
    uint64_t value = 0;
    auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    check(error == std::errc{}, "'", name, "' does not fit 64 bits, found ", json.describe());
    return value;
  }

 private:
  const Json& member(const Json& json, const char* name, const std::string& owner) const {
    const Json* found = json.find(name);
    TORCH_CHECK(found, where_, ": ", owner, " missing '", name, "' property; found: ", keys(json));
    return *found;
  }

  const std::string& text_of(const Json& json, const char* name) const {
    TORCH_CHECK(json.string(), where_, ": '", name, "' must be a string, found ", json.describe());
    return *json.string();
  }

  static std::string keys(const Json& json) {
    std::string list;
    for (const auto& found : *json.object()) list += (list.empty() ? "" : ", ") + found.key;
    return list.empty() ? "nothing" : list;
  }

  std::string where_;
  std::string command_;
  const Json* properties_ = nullptr;
};

std::vector<Entry> read_entries(const Json& manifest, const char* name, const std::string& file) {
  const Json* found = manifest.find(name);
  TORCH_CHECK(found && found->array(), file, ": missing '", name, "' array; found ",
              found ? found->describe() : "nothing of that name");
  std::vector<Entry> entries;
  for (const Json& json : *found->array()) {
    entries.emplace_back(file + ": " + name + "[" + std::to_string(entries.size()) + "]", json);
  }
  return entries;
}

void read_allocate(const Entry& entry, Recipe& recipe) {
  const size_t size = entry.size("size");
  constexpr size_t kLargest = card::kProgramSegmentEnd - card::kProgramSegment;
  entry.check(size <= kLargest, "'size' = '", size,
              "' is more than the program segment; allowed: ", "up to ", kLargest, " bytes");
  recipe.allocation_size = size;
}

void read_init_transfer(const Entry& entry, const fs::path& directory, Recipe& recipe) {
  const std::string& name = entry.text("init_bin_file");
  const size_t size = entry.size("size");
  const size_t offset = entry.offset("dev_ptr", size, recipe.allocation_size);
  entry.check(!name.empty() && fs::path(name).filename() == name, "'init_bin_file' = '", name,
              "' must be the name of a file next to spyrecode.json");
  const fs::path path = directory / name;
  entry.check(is_file(path), "'init_bin_file' = '", name, "': file not found in ",
              directory.string());
  auto bytes = std::make_shared<const Bytes>(read_file<Bytes>(path));
  entry.check(bytes->size() == size, "'init_bin_file' = '", name, "' has ", bytes->size(),
              " bytes, but 'size' is '", size, "'; both must agree");
  recipe.inits.push_back({offset, std::move(bytes)});
}

void read_preparation(const std::vector<Entry>& entries, const std::string& file,
                      const fs::path& directory, Recipe& recipe) {
  TORCH_CHECK(entries.size() >= 2, file, ": JobPreparationPlan has ", entries.size(),
              " entries; allowed: one Allocate, then one InitTransfer or more");
  for (size_t i = 0; i < entries.size(); i++) {
    const Entry& entry = entries[i];
    const char* expected = i == 0 ? "Allocate" : "InitTransfer";
    const bool known = entry.command() == "Allocate" || entry.command() == "InitTransfer";
    entry.check(known, "Unknown SpyreCode command type '", entry.command(),
                "'; allowed here: ", expected);
    entry.check(entry.command() == expected, "expected ", expected, " at this place, found ",
                entry.command());
    i == 0 ? read_allocate(entry, recipe) : read_init_transfer(entry, directory, recipe);
  }
}

std::string list_handles(const Recipe& recipe) {
  std::string list;
  for (const auto& buffer : recipe.buffers) list += (list.empty() ? "" : ", ") + buffer.handle;
  return list.empty() ? "none" : list;
}

size_t new_buffer(const Entry& entry, const char* property, size_t size, Recipe& recipe) {
  const std::string& handle = entry.text(property);
  entry.check(!handle.empty(), "'", property, "' is ''; allowed: the name of a new buffer");
  entry.check(!recipe.find_buffer(handle), property, " '", handle,
              "' must be new, but an earlier step has made it; known: ", list_handles(recipe));
  recipe.buffers.push_back({handle, size, {}});
  return recipe.buffers.size() - 1;
}

size_t known_buffer(const Entry& entry, const char* property, const Recipe& recipe) {
  const std::string& handle = entry.text(property);
  auto found = recipe.find_buffer(handle);
  entry.check(found.has_value(), property, " '", handle,
              "' not found in pinned buffer map; known: ", list_handles(recipe));
  return *found;
}

// True when the shape is ["0"]: no input.
bool read_empty_shape(const Entry& entry) {
  const Json& shape = entry.property("ishape");
  entry.check(shape.array(), "'ishape' must be an array, found ", shape.describe());
  bool empty = shape.array()->size() == 1;
  for (const Json& element : *shape.array()) {
    entry.check(element.string(), "'ishape' elements must be strings, found ", element.describe());
    empty = entry.number_of(element, "ishape") == 0 && empty;
  }
  return empty;
}

Step read_host_compute(const Entry& entry, Recipe& recipe) {
  Step step{.type = StepType::HOST_COMPUTE, .size = entry.size("size")};
  const Json& hcm = entry.property("hcm");
  entry.check(hcm.object(), "'hcm' must be an object, found ", hcm.describe());
  const bool empty_shape = read_empty_shape(entry);
  if (!entry.text("ihandle").empty()) {
    step.input = HostInput::BUFFER;
    step.input_buffer = known_buffer(entry, "ihandle", recipe);
    const size_t input_size = recipe.buffers[step.input_buffer].size;
    entry.check(input_size <= step.size, "the buffer of 'ihandle' has ", input_size,
                " bytes; allowed: up to 'size' = '", step.size, "'");
  } else {
    step.input = empty_shape ? HostInput::NOTHING : HostInput::ADDRESSES;
  }
  step.buffer = new_buffer(entry, "ohandle", step.size, recipe);
  return step;
}

Step read_transfer(const Entry& entry, Recipe& recipe) {
  const std::string& direction = entry.text("dirn");
  entry.check(direction == "true" || direction == "false", "'dirn' = '", direction,
              "'; allowed: 'false' (host to device), 'true' (device to host)");
  Step step{.type = direction == "true" ? StepType::D2H : StepType::H2D};
  step.size = entry.size("size");
  step.offset = entry.offset("dev_ptr", step.size, recipe.allocation_size);
  if (step.type == StepType::D2H) {
    step.buffer = new_buffer(entry, "host_handle", step.size, recipe);
    return step;
  }
  step.buffer = known_buffer(entry, "host_handle", recipe);
  const auto& buffer = recipe.buffers[step.buffer];
  entry.check(step.size <= buffer.size, "'size' = '", step.size, "', but buffer '", buffer.handle,
              "' has ", buffer.size, " bytes");
  return step;
}

Step read_step(const Entry& entry, Recipe& recipe) {
  if (entry.command() == "ComputeOnHost") return read_host_compute(entry, recipe);
  if (entry.command() == "DataTransfer") return read_transfer(entry, recipe);
  entry.check(entry.command() == "ComputeOnDevice", "Unknown SpyreCode command type '",
              entry.command(), "'; allowed here: ComputeOnDevice, ComputeOnHost, DataTransfer");
  Step step{.type = StepType::COMPUTE};
  step.offset = entry.offset("job_bin_ptr", 1, recipe.allocation_size);
  return step;
}

// A program that is corrected by the host must be corrected before it runs.
void check_order(const std::vector<Step>& steps, const std::string& file) {
  if (steps.empty() || steps[0].type != StepType::HOST_COMPUTE) return;
  constexpr std::pair<size_t, StepType> kExpected[] = {{1, StepType::H2D}, {2, StepType::COMPUTE}};
  for (auto [index, type] : kExpected) {
    TORCH_CHECK(index < steps.size() && steps[index].type == type, file, ": JobExecPlan[", index,
                "]: a plan that begins with HostCompute goes on with H2D, then Compute; expected ",
                name(type), ", found ", index < steps.size() ? name(steps[index].type) : "the end");
  }
}

Recipe read_spyrecode(const fs::path& directory) {
  std::error_code ignored;
  TORCH_CHECK(fs::is_directory(directory, ignored), "SpyreCode directory does not exist: '",
              directory.string(), "'");
  const fs::path path = directory / "spyrecode.json";
  TORCH_CHECK(is_file(path), "Required file spyrecode.json not found in '", directory.string(),
              "'");
  const std::string file = path.string();
  Json manifest;
  try {
    manifest = parse_json(read_file<std::string>(path));
  } catch (const JsonError& error) {
    TORCH_CHECK(false, file, ": not valid JSON: ", error.what());
  }
  const auto preparation = read_entries(manifest, "JobPreparationPlan", file);
  const auto execution = read_entries(manifest, "JobExecPlan", file);
  Recipe recipe;
  read_preparation(preparation, file, directory, recipe);
  for (const Entry& entry : execution) recipe.steps.push_back(read_step(entry, recipe));
  check_order(recipe.steps, file);
  return recipe;
}

// ---- Preparing --------------------------------------------------------------------------------

card::Address program_memory(const JobPlan& plan) {
  return reinterpret_cast<card::Address>(plan.allocation.get());
}

double transfer_us(const card::Hardware& hardware, size_t bytes) {
  return hardware.dma_us + static_cast<double>(bytes) / hardware.host_bytes_per_us;
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
       .device_us = transfer_us(card.hardware, init.bytes->size()),
       .run = [plan, target,
               bytes = init.bytes] { std::memcpy(target, bytes->data(), bytes->size()); },
       .uses = {}});
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

void run_compute(const JobPlan& plan, const Step& step, const Arguments& arguments,
                 card::Memory& memory) {
  const std::byte* bytes = memory.host(program_memory(plan) + step.offset);
  card::run_program(
      {card::kProgramSegment + step.offset, {bytes, plan.allocation_size - step.offset}},
      arguments.addresses, memory);
}

void run_step(const JobPlan& plan, const Step& step, const Arguments& arguments,
              card::Memory& memory) {
  switch (step.type) {
    case StepType::HOST_COMPUTE:
      return run_host_compute(plan, step, arguments);
    case StepType::COMPUTE:
      return run_compute(plan, step, arguments, memory);
    case StepType::H2D:
      std::memcpy(memory.host(program_memory(plan) + step.offset),
                  plan.buffers[step.buffer].bytes(), step.size);
      return;
    case StepType::D2H:
      std::memcpy(plan.buffers[step.buffer].bytes(),
                  memory.host(program_memory(plan) + step.offset), step.size);
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

// The modelled time must be known when a step is queued. A program's own time is added here once
// programs have steps.
double step_us(const Step& step, const card::Hardware& hardware) {
  if (step.type == StepType::HOST_COMPUTE) return 0;
  if (step.type == StepType::COMPUTE) return hardware.job_us;
  return transfer_us(hardware, step.size);
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
  job.device_us = step_us(step, card.hardware);
  if (step.type == StepType::COMPUTE) job.uses = arguments->blocks;  // no other step touches them
  job.run = [plan, &step, arguments, &memory = card.memory] {
    run_step(*plan, step, *arguments, memory);
  };
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

Recipe read_hex_kernel(const fs::path& directory, const std::string& directory_name) {
  std::error_code ignored;
  TORCH_CHECK(fs::is_directory(directory, ignored), "kernel directory does not exist: '",
              directory.string(), "'");
  TORCH_CHECK(is_file(directory / "bundle.mlir"), "Required file bundle.mlir not found in '",
              directory.string(), "'");
  const fs::path path =
      directory / "loadprogram_to_device" / (directory_name + "-SenProgSend") / "init.txt";
  TORCH_CHECK(is_file(path), "Required file init.txt not found: '", path.string(), "'");
  auto bytes = card::parse_hex_program(read_file<std::string>(path), path.string());
  Recipe recipe;
  recipe.allocation_size = bytes.size();
  recipe.inits.push_back({0, std::make_shared<const Bytes>(std::move(bytes))});
  recipe.steps.push_back({.type = StepType::COMPUTE});
  return recipe;
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

const char* name(StepType type) {
  constexpr const char* kNames[] = {"H2D", "D2H", "Compute", "HostCompute"};
  return kNames[static_cast<int>(type)];
}

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
  return make_plan("job plan " + directory_name(directory), std::move(recipe),
                   stream ? *stream : current_stream(current_device()));
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
