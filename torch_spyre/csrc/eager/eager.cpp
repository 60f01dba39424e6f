// In reading order: the table of programs, running one, and the kernel that PyTorch calls.
#include "eager/eager.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include "eager/fallback.h"
#include "eager/operations.h"
#include "eager/signature.h"
#include "hooks/copy.h"
#include "hooks/integers.h"

namespace spyre {
namespace {

using c10::IValue;
using torch::jit::Stack;

// ---- The table ---------------------------------------------------------------------------------

using Numbers = std::map<std::array<int64_t, 4>, at::Tensor>;

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<Key, EagerAnswer, KeyHash> programs;
  std::mutex numbers_mutex;
  Numbers numbers;
};
// Never destroyed: at exit the cards may still be running programs of it.
Table& table() {
  static auto* t = new Table();
  return *t;
}

std::atomic<EagerAnswer (*)(const EagerQuestion&)> g_resolver{nullptr};
std::atomic<int64_t (*)()> g_epoch_reader{nullptr};
std::atomic<int> g_on_card{-1};  // -1: as the settings say

constexpr size_t kMaxNumbers = 4096;

// ---- Running -----------------------------------------------------------------------------------

at::Tensor make(const EagerProgram::Made& made, c10::DeviceIndex device) {
  return new_tensor(made.size, made.stride, made.dtype, device, made.tiling);
}

// What the kernels get for an input. Copies of those that they expect in another layout are
// appended to `copies`.
at::Tensor input_of_kernels(const EagerProgram::Input& input, const EagerQuestion::Input& given,
                            c10::DeviceIndex device,
                            std::vector<std::pair<at::Tensor, at::Tensor>>& copies) {
  if (input.number) return number_on_card(std::get<c10::Scalar>(given), *input.number, device);
  const auto& tensor = std::get<at::Tensor>(given);
  if (!input.relaid) return tensor;
  auto base = make(*input.relaid, device);
  auto view = base.as_strided(tensor.sizes(), tensor.strides(), 0);
  copy_tensor(tensor, view, false);
  if (input.written) copies.emplace_back(tensor, view);
  return base;
}

c10::SmallVector<at::Tensor, 3> run(const EagerProgram& program,
                                    const std::vector<EagerQuestion::Input>& given) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  c10::SmallVector<at::Tensor, 4> inputs, made;
  for (size_t i = 0; i < given.size(); i++) {
    inputs.push_back(input_of_kernels(program.inputs[i], given[i], program.device, copies));
  }
  for (const auto& each : program.made) made.push_back(make(each, program.device));
  std::vector<at::Tensor> arguments;
  for (const auto& call : program.calls) {
    arguments.clear();
    for (const auto& a : call.arguments) {
      using Source = EagerProgram::Source;
      arguments.push_back(a.source == Source::MADE    ? made[a.index]
                          : a.source == Source::TABLE ? program.tables[a.index]
                                                      : inputs[a.index]);
    }
    arguments.insert(arguments.end(), call.constants.begin(), call.constants.end());
    launch(call.plan, arguments);
    for (const auto& tensor : arguments) forget_limits(tensor);
  }
  for (const auto& [tensor, copy] : copies) copy_tensor(copy, tensor, false);
  c10::SmallVector<at::Tensor, 3> results;
  for (const auto& result : program.results) {
    const auto& whole = made[result.made];
    results.push_back(result.is_view ? whole.as_strided(result.size, result.stride, result.offset)
                                     : whole);
  }
  return results;
}

// No two elements in one place: each stride is larger than what all smaller ones reach.
bool is_free_of_overlap(const at::Tensor& t) {
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (int64_t d = 0; d < t.dim(); d++) {
    if (t.size(d) > 1) dims.emplace_back(t.stride(d), t.size(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

bool is_another_view(const at::Tensor& t, const at::Tensor& given) {
  return t.defined() && t.is_alias_of(given) && !same_view(t, given);
}

// ---- The kernel of an operation ----------------------------------------------------------------

class EagerKernel;
std::vector<EagerKernel*>& all_kernels() {
  static auto* kernels = new std::vector<EagerKernel*>();
  return *kernels;
}

class EagerKernel final : public c10::OperatorKernel {
 public:
  EagerKernel() { all_kernels().push_back(this); }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    std::string why_not;
    if (!try_run(op, stack, &why_not)) run_boxed(op, stack, why_not);
  }

  // Whether the card did it: results are then in the place of the arguments.
  bool try_run(const c10::OperatorHandle& op, Stack* stack, std::string* why_not) {
    if (!get_eager_on_card()) {
      *why_not = "eager operations are set to run on the host (SPYRE_EAGER, torch.spyre.set_eager)";
      return false;
    }
    std::call_once(once_, [&] { facts_ = std::make_unique<const EagerFacts>(op.schema()); });
    const size_t count = op.schema().arguments().size();
    EagerCall call(*facts_, c10::ArrayRef<IValue>(stack->data() + stack->size() - count, count));
    if (call.refusal != nullptr) {
      *why_not = call.refusal;
      return call.refusal == kWritesGaps && try_on_dense(op, stack, why_not);
    }
    const EagerAnswer answer = find(op, *stack, call);
    if (!answer.program) {
      *why_not = answer.why_not;
      return false;
    }
    auto results = run(*answer.program, call.inputs);
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (facts_->result) results = {(*stack)[stack->size() - count + *facts_->result].toTensor()};
    torch::jit::drop(*stack, count);
    for (at::Tensor& result : results) stack->emplace_back(std::move(result));
    return true;
  }

  void add_count(std::map<std::string, int64_t>& counts) const {
    const int64_t calls = calls_.load(std::memory_order_relaxed);
    if (calls > 0) counts[facts_->name] += calls;
  }
  void reset_count() { calls_ = 0; }
  void forget_signatures() { signatures_ = 0; }

 private:
  // What is written has gaps: the program writes a dense copy.
  bool try_on_dense(const c10::OperatorHandle& op, Stack* stack, std::string* why_not) {
    const size_t first = stack->size() - op.schema().arguments().size();
    const at::Tensor given = (*stack)[first + *facts_->result].toTensor();
    if (!is_free_of_overlap(given)) return false;
    for (size_t i = first; i < stack->size(); i++) {
      const IValue& value = (*stack)[i];
      if (value.isTensor() && is_another_view(value.toTensor(), given)) return false;
      if (value.isTensorList()) return false;
      if (!value.isOptionalTensorList()) continue;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
        if (t && t->defined() && t->is_alias_of(given)) return false;
      }
    }
    const auto strides = at::infer_dense_strides(given.sizes(), given.strides());
    auto dense = new_tensor(given.sizes(), strides, given.scalar_type(), given.device().index());
    copy_tensor(given, dense, false);
    Stack copy(stack->begin() + static_cast<int64_t>(first), stack->end());
    for (IValue& value : copy) {
      const bool is_given =
          value.isTensor() && value.toTensor().defined() && value.toTensor().is_alias_of(given);
      if (is_given) value = dense;
    }
    if (!try_run(op, &copy, why_not)) return false;
    copy_tensor(dense, given, false);
    torch::jit::drop(*stack, stack->size() - first);
    stack->emplace_back(given);
    return true;
  }

  EagerAnswer find(const c10::OperatorHandle& op, const Stack& stack, EagerCall& call) {
    Key key;
    const auto epoch_reader = g_epoch_reader.load(std::memory_order_relaxed);
    key.words.reserve(call.words.size() + 3);
    key.words = {reinterpret_cast<int64_t>(this), *call.device,
                 epoch_reader == nullptr ? 0 : epoch_reader()};
    key.words.insert(key.words.end(), call.words.begin(), call.words.end());
    key.hash = hash_of(key.words.data(), key.words.size());
    {
      std::shared_lock lock(table().mutex);
      const auto known = table().programs.find(key);
      if (known != table().programs.end()) return known->second;
    }
    const auto resolver = g_resolver.load();
    if (resolver == nullptr) return {nullptr, "the compiler is not loaded"};
    if (!admits_another()) return {nullptr, "of too many signatures: SPYRE_EAGER_LIMIT"};
    EagerAnswer answer =
        resolver({op, stack, call.input_of, call.inputs, call.classes, *call.device});
    if (answer.remember) {
      std::unique_lock lock(table().mutex);
      const auto [entry, is_new] = table().programs.try_emplace(std::move(key), std::move(answer));
      signatures_ += is_new ? 1 : 0;
      return entry->second;
    }
    return answer;
  }

  // Programs with ever new shapes would compile for ever. What counts is what was asked for,
  // wherever it was found: where an operation runs must not depend on what happens to be on disk.
  bool admits_another() {
    const int limit = settings().eager_limit;
    if (signatures_.load(std::memory_order_relaxed) < limit) return true;
    if (!warned_.exchange(true) && limit > 0) {
      TORCH_WARN(facts_->name, " was called with more than ", limit,
                 " combinations of shapes, layouts and types; the host computes further ones. "
                 "SPYRE_EAGER_LIMIT raises the limit");
    }
    return false;
  }

  std::once_flag once_;
  std::unique_ptr<const EagerFacts> facts_;
  std::atomic<int64_t> calls_{0};
  std::atomic<int> signatures_{0};  // in the table
  std::atomic<bool> warned_{false};
};

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!may_be_eager(name.name)) continue;  // a name costs less than a schema
    auto op = dispatcher.findSchema(name);
    if (op && is_eager_operation(*op)) {
      m.impl(c10::toString(name).c_str(),
             torch::CppFunction::makeFromBoxedFunctor(std::make_unique<EagerKernel>()));
    }
  }
}

}  // namespace

EagerDoor::EagerDoor(const char* name)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "")), kernel_(new EagerKernel()) {}
bool EagerDoor::try_run(torch::jit::Stack* stack) const {
  std::string why_not;
  return static_cast<EagerKernel*>(kernel_)->try_run(op_, stack, &why_not);
}

void set_eager_resolver(EagerAnswer (*resolver)(const EagerQuestion&)) { g_resolver = resolver; }
void set_eager_epoch_reader(int64_t (*reader)()) { g_epoch_reader = reader; }

bool get_eager_on_card() {
  const int value = g_on_card.load(std::memory_order_relaxed);
  return value < 0 ? settings().eager_on_card : value != 0;
}
void set_eager_on_card(bool on_card) { g_on_card = on_card ? 1 : 0; }

std::map<std::string, int64_t> eager_counts() {
  std::map<std::string, int64_t> counts;
  for (const auto* kernel : all_kernels()) kernel->add_count(counts);
  return counts;
}
void reset_eager_counts() {
  for (auto* kernel : all_kernels()) kernel->reset_count();
}

void clear_eager_programs() {
  decltype(Table::programs) programs;
  decltype(Table::numbers) numbers;
  std::unique_lock lock(table().mutex);
  std::lock_guard numbers_lock(table().numbers_mutex);
  for (auto* kernel : all_kernels()) kernel->forget_signatures();
  programs.swap(table().programs);
  numbers.swap(table().numbers);
}

// Whether there were any. Without the lock when they are freed: the memory has one of its own.
static bool forget_numbers() {
  Numbers numbers;
  std::lock_guard lock(table().numbers_mutex);
  numbers.swap(table().numbers);
  return !numbers.empty();
}

at::Tensor number_on_card(const c10::Scalar& value, c10::ScalarType dtype,
                          c10::DeviceIndex device) {
  const bool is_float = value.isFloatingPoint();
  const int64_t bits = is_float ? std::bit_cast<int64_t>(value.toDouble()) : value.toLong();
  const std::array<int64_t, 4> key = {bits, is_float, static_cast<int64_t>(dtype), device};
  {
    std::lock_guard lock(table().numbers_mutex);
    const auto known = table().numbers.find(key);
    if (known != table().numbers.end()) return known->second;
  }
  // Not by way of a host type of 16 bits: the card's format holds numbers that float16 does not.
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto host_dtype = is_half ? at::kFloat : dtype;
  auto tensor = new_tensor({}, {}, dtype, device);
  copy_tensor(at::scalar_tensor(value, at::TensorOptions().dtype(host_dtype)), tensor, false);
  get_card(device).memory.set_last_resort(&forget_numbers);
  Numbers dropped;
  std::lock_guard lock(table().numbers_mutex);
  if (table().numbers.size() >= kMaxNumbers) dropped.swap(table().numbers);
  return table().numbers.try_emplace(key, tensor).first->second;
}

}  // namespace spyre
