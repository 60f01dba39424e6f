// In reading order: what an operation is, the signature of a call, the table of programs, running
// one, and the kernel that PyTorch calls.
#include "eager/eager.h"

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
#include "hooks/copy.h"
#include "hooks/integers.h"

namespace spyre {
namespace {

using c10::IValue;
using torch::jit::Stack;

// ---- Operations --------------------------------------------------------------------------------

// REFERENCE 9.5: what eager PyTorch does on the card, in all forms that reach a device.
bool is_documented(const std::string& name) {
  static const std::unordered_set<std::string> names = {"mm",
                                                        "silu",
                                                        "mish",
                                                        "abs",
                                                        "add",
                                                        "bitwise_not",
                                                        "logical_not",
                                                        "bmm",
                                                        "cat",
                                                        "div",
                                                        "exp",
                                                        "floor",
                                                        "log",
                                                        "mean",
                                                        "mul",
                                                        "reciprocal",
                                                        "neg",
                                                        "relu",
                                                        "rsqrt",
                                                        "sigmoid",
                                                        "_softmax",
                                                        "stack",
                                                        "sum",
                                                        "sqrt",
                                                        "tanh",
                                                        "sub",
                                                        "addmm",
                                                        "eq",
                                                        "le",
                                                        "ne",
                                                        "ge",
                                                        "gt",
                                                        "lt",
                                                        "maximum",
                                                        "minimum",
                                                        "pow",
                                                        "linalg_vector_norm",
                                                        "where",
                                                        "clamp",
                                                        "constant_pad_nd"};
  return names.count(name) > 0;
}

// Numbers beside tensors are operands of the program like any other, so that x * 2 and x * 3 are
// one program. In other operations numbers decide what the program is.
bool takes_numbers(const std::string& name) {
  static const std::unordered_set<std::string> names = {"add", "sub", "mul", "div", "eq",
                                                        "ne",  "lt",  "le",  "gt",  "ge"};
  return names.count(name) > 0;
}

// Operations that are exact on truth values: nothing is added up.
bool takes_truth_values(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "logical_not", "bitwise_not", "eq", "ne", "where", "cat", "stack", "constant_pad_nd"};
  return names.count(name) > 0;
}

bool compares(const std::string& name) {
  static const std::unordered_set<std::string> names = {"eq", "ne", "lt", "le", "gt", "ge"};
  return names.count(name) > 0;
}

std::string base_name(const std::string& full_name) {
  std::string name = full_name.substr(sizeof("aten::") - 1);
  if (name.size() > 1 && name.back() == '_') name.pop_back();
  return name;
}
std::string base_name(const c10::FunctionSchema& schema) { return base_name(schema.name()); }

// What is worth knowing about an operation, found once.
struct Facts {
  explicit Facts(const c10::FunctionSchema& schema)
      : name(schema.overload_name().empty() ? schema.name()
                                            : schema.name() + "." + schema.overload_name()),
        truth_values(takes_truth_values(base_name(schema))) {
    const bool numbers = takes_numbers(base_name(schema));
    for (size_t i = 0; i < schema.arguments().size(); i++) {
      const auto& argument = schema.arguments()[i];
      const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      if (is_written) result = i;
      if (argument.name() == "alpha") alpha = i;
      if (argument.name() == "rounding_mode") is_rounded = true;
      written.push_back(is_written);
      number.push_back(numbers && i < 2);
    }
    if (is_rounded) std::fill(number.begin(), number.end(), false);
    is_quotient = base_name(schema) == "div" && !is_rounded;
    is_comparison = compares(base_name(schema));
  }

  std::string name;
  bool truth_values;
  bool is_rounded = false;       // a quotient that is rounded to an integer
  bool is_quotient = false;      // a number that divides is an operand as its inverse
  bool is_comparison = false;    // with a number as the type of the tensor holds it
  std::vector<bool> written;     // by argument
  std::vector<bool> number;      // by argument: a number there is an operand
  std::optional<size_t> result;  // the argument that the operation writes and returns
  std::optional<size_t> alpha;
};

// ---- Signatures --------------------------------------------------------------------------------

struct Key {
  std::vector<int64_t> words;
  uint64_t hash = 0;
  bool operator==(const Key& other) const { return words == other.words; }
};
struct KeyHash {
  size_t operator()(const Key& key) const { return key.hash; }
};

uint64_t hash_of(const int64_t* words, size_t count) {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ count;
  for (size_t i = 0; i < count; i++) {
    hash = (hash ^ static_cast<uint64_t>(words[i])) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

// Tags that begin the words of an argument, so that no two signatures read the same.
enum Tag : int64_t {
  NOTHING = -1,
  TENSOR = -2,
  AGAIN = -3,  // a tensor that came before
  NUMBER = -4,
  INT = -5,
  DOUBLE = -6,
  BOOL = -7,
  STRING = -8,
  INTS = -9,
  TENSORS = -10,
};

bool is_number(const at::Tensor& t) {
  return t.is_cpu() && t.dim() == 0 && t.unsafeGetTensorImpl()->is_wrapped_number();
}

c10::Scalar number_in(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return *t.const_data_ptr<double>();
    case at::kLong:
      return *t.const_data_ptr<int64_t>();
    case at::kBool:
      return *t.const_data_ptr<bool>();
    default:
      return t.item();
  }
}

// Whether DLFloat16 holds a number to rounding; infinities and NaN it does hold.
bool fits_the_format(const c10::Scalar& value) {
  constexpr double kLeast = 0x1p-30, kMost = 0x1.fe8p32;
  const double size = std::abs(value.toDouble());
  return !(size > 0 && size < kLeast) && (size <= kMost || std::isinf(size) || std::isnan(size));
}

// Reads a call: its words, and what a program is run with. `ok` is false when there is something
// that programs do not have; the boxed path then does it, or says what is wrong with it.
class Reader {
 public:
  Reader(const Facts& facts, c10::ArrayRef<IValue> arguments) : facts_(facts) {
    numbers_ = !facts.alpha || is_one(arguments[*facts.alpha]);
    for (size_t i = 0; ok && i < arguments.size(); i++) read(arguments[i], i);
    if (facts_.is_comparison) round_numbers();
    ok = ok && device && (any_float_ || (any_bool_ && facts.truth_values && !any_number_));
  }

  bool ok = true;
  c10::SmallVector<int64_t, 160> words;
  std::vector<EagerQuestion::Input> inputs;
  std::vector<int64_t> input_of;
  std::optional<c10::DeviceIndex> device;

 private:
  static bool is_one(const IValue& value) {
    return (value.isInt() && value.toInt() == 1) || (value.isDouble() && value.toDouble() == 1);
  }

  void push(std::initializer_list<int64_t> more) { words.append(more.begin(), more.end()); }
  void push_list(c10::ArrayRef<int64_t> list) {
    words.push_back(static_cast<int64_t>(list.size()));
    words.append(list.begin(), list.end());
  }

  void read(const IValue& value, size_t i) {
    if (value.isTensor()) {
      read_tensor(value.toTensor(), i);
    } else if (value.isTensorList()) {
      const auto& list = value.toTensorVector();
      push({TENSORS, static_cast<int64_t>(list.size())});
      for (const at::Tensor& t : list) {
        if (ok) read_tensor(t, i);
      }
    } else {
      read_value(value, i);
    }
  }

  void read_value(const IValue& value, size_t i) {
    if (facts_.number[i] && (value.isInt() || value.isDouble() || value.isBool())) {
      return read_number(value.toScalar(), i);
    }
    input_of.push_back(-1);
    if (value.isNone()) {
      push({NOTHING});
    } else if (value.isInt()) {
      push({INT, value.toInt()});
    } else if (value.isDouble()) {
      push({DOUBLE, std::bit_cast<int64_t>(value.toDouble())});
    } else if (value.isBool()) {
      push({BOOL, value.toBool()});
    } else if (value.isIntList()) {
      push({INTS});
      push_list(value.toIntVector());
    } else if (value.isString()) {
      const auto& text = value.toStringRef();
      push({STRING, static_cast<int64_t>(text.size())});
      for (char c : text) words.push_back(c);
    } else {
      ok = false;
    }
  }

  void read_number(const c10::Scalar& value, size_t i) {
    if (value.isComplex()) {
      ok = false;
      return;
    }
    any_number_ = true;
    const int64_t type = value.isFloatingPoint() ? DOUBLE : value.isBoolean() ? BOOL : INT;
    // As the compiler has it: x / 3 is a product.
    const bool is_divisor = facts_.is_quotient && i == 1;
    const c10::Scalar operand = is_divisor ? c10::Scalar(1.0 / value.toDouble()) : value;
    // The compiler knows what x + 0 and x * 1 are: no program of two operands. And it takes numbers
    // apart that the card's format does not hold.
    const bool is_operand = numbers_ && facts_.number[i] && !value.equal(0) && !value.equal(1) &&
                            fits_the_format(operand);
    if (is_operand) {
      push({NUMBER});  // of whatever type: beside floating point it makes no difference
      input_of.push_back(static_cast<int64_t>(inputs.size()));
      inputs.emplace_back(operand);
      return;
    }
    input_of.push_back(-1);
    const double number = value.isFloatingPoint() ? value.toDouble() : 0;
    push({type, value.isFloatingPoint() ? std::bit_cast<int64_t>(number) : value.toLong()});
  }

  // x == 0.1 asks for the float16 that is nearest to 0.1; in arithmetic 0.1 is a float32.
  void round_numbers() {
    for (auto& input : inputs) {
      auto* number = std::get_if<c10::Scalar>(&input);
      if (number == nullptr || !type_) continue;
      const double value = number->toDouble();
      if (*type_ == at::kHalf) *number = static_cast<double>(at::Half(static_cast<float>(value)));
      if (*type_ == at::kBFloat16) {
        *number = static_cast<double>(at::BFloat16(static_cast<float>(value)));
      }
    }
  }

  void read_tensor(const at::Tensor& t, size_t i) {
    if (!t.defined()) {
      input_of.push_back(-1);
      return push({NOTHING});
    }
    if (is_number(t)) return read_number(number_in(t), i);
    ok = t.device().type() == kSpyre && t.layout() == c10::kStrided && t.has_storage() &&
         t.numel() > 0 && !t.is_conj() && !t.is_neg() && !t._is_zerotensor() &&
         !t.unsafeGetTensorImpl()->is_wrapped_number() &&
         (!device || *device == t.device().index());
    if (!ok) return;
    device = t.device().index();
    type_ = t.scalar_type();
    // Neither fake tensors nor plain storages over device addresses have one.
    const auto* storage = dynamic_cast<const SpyreStorageImpl*>(t.storage().unsafeGetStorageImpl());
    ok = storage != nullptr && storage->tiling != nullptr &&
         storage->tiling->dtype == t.scalar_type();
    if (!ok || !see_type(t.scalar_type())) {
      ok = false;
      return;
    }
    if (facts_.written[i] && !t.is_non_overlapping_and_dense()) {
      ok = false;
      return;
    }
    for (size_t j = 0; j < inputs.size(); j++) {
      const auto* other = std::get_if<at::Tensor>(&inputs[j]);
      if (other == nullptr || !other->is_alias_of(t)) continue;
      if (same_view(*other, t)) {
        written_ |= facts_.written[i];
        input_of.push_back(static_cast<int64_t>(j));
        return push({AGAIN, static_cast<int64_t>(j)});
      }
      aliases_ = true;
    }
    written_ |= facts_.written[i];
    if (aliases_ && (written_ || facts_.result)) {  // a written storage in two views
      ok = false;
      return;
    }
    input_of.push_back(static_cast<int64_t>(inputs.size()));
    inputs.emplace_back(t);
    push_tensor(t, storage->tiling->placement);
  }

  void push_tensor(const at::Tensor& t, const card::Placement& placement) {
    push({TENSOR, static_cast<int64_t>(t.scalar_type()), t.storage_offset()});
    push_list(t.sizes());
    push_list(t.strides());
    push_list(placement.layout.device_size);
    push_list(placement.layout.stride_map);
    push({static_cast<int64_t>(placement.layout.format),
          static_cast<int64_t>(placement.layout.arrangement)});
    push_list(placement.sizes);
    push_list(placement.strides);
  }

  // The card computes in floating point, and integers of PyTorch have 64 bits: they stay exact on
  // the host.
  bool see_type(c10::ScalarType type) {
    any_float_ |= type == at::kHalf || type == at::kFloat || type == at::kBFloat16;
    any_bool_ |= type == at::kBool;
    return type == at::kHalf || type == at::kFloat || type == at::kBFloat16 || type == at::kBool;
  }

  const Facts& facts_;
  bool numbers_ = false;
  bool any_float_ = false, any_bool_ = false, any_number_ = false;
  bool written_ = false, aliases_ = false;
  std::optional<c10::ScalarType> type_;  // of the last tensor
};

// ---- The table ---------------------------------------------------------------------------------

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<Key, EagerProgramPtr, KeyHash> programs;  // null: the host
  std::mutex numbers_mutex;
  std::map<std::array<int64_t, 4>, at::Tensor> numbers;
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

at::Tensor run(const EagerProgram& program, const std::vector<EagerQuestion::Input>& given) {
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
      arguments.push_back(a.made ? made[a.index] : inputs[a.index]);
    }
    arguments.insert(arguments.end(), call.constants.begin(), call.constants.end());
    launch(call.plan, arguments);
    for (const auto& tensor : arguments) forget_limits(tensor);
  }
  for (const auto& [tensor, copy] : copies) copy_tensor(copy, tensor, false);
  if (!program.result) return {};
  const auto& result = *program.result;
  const auto& whole = made[result.made];
  return result.is_view ? whole.as_strided(result.size, result.stride, result.offset) : whole;
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
    if (!get_eager_on_card()) return run_boxed(op, stack);
    std::call_once(once_, [&] { facts_ = std::make_unique<const Facts>(op.schema()); });
    const size_t count = op.schema().arguments().size();
    Reader reader(*facts_, c10::ArrayRef<IValue>(stack->data() + stack->size() - count, count));
    if (!reader.ok) return run_boxed(op, stack);
    const EagerProgramPtr program = find(op, *stack, reader);
    if (!program) return run_boxed(op, stack);
    at::Tensor result = run(*program, reader.inputs);
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (facts_->result) result = (*stack)[stack->size() - count + *facts_->result].toTensor();
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(result));
  }

  void add_count(std::map<std::string, int64_t>& counts) const {
    const int64_t calls = calls_.load(std::memory_order_relaxed);
    if (calls > 0) counts[facts_->name] += calls;
  }
  void reset_count() { calls_ = 0; }
  void forget_signatures() { signatures_ = 0; }

 private:
  EagerProgramPtr find(const c10::OperatorHandle& op, const Stack& stack, Reader& reader) {
    Key key;
    const auto epoch_reader = g_epoch_reader.load(std::memory_order_relaxed);
    key.words.reserve(reader.words.size() + 3);
    key.words = {reinterpret_cast<int64_t>(this), *reader.device,
                 epoch_reader == nullptr ? 0 : epoch_reader()};
    key.words.insert(key.words.end(), reader.words.begin(), reader.words.end());
    key.hash = hash_of(key.words.data(), key.words.size());
    {
      std::shared_lock lock(table().mutex);
      const auto known = table().programs.find(key);
      if (known != table().programs.end()) return known->second;
    }
    const auto resolver = g_resolver.load();
    if (resolver == nullptr || !admits_another()) return nullptr;
    const EagerAnswer answer =
        resolver({op, stack, reader.input_of, reader.inputs, *reader.device});
    if (answer.remember) {
      std::unique_lock lock(table().mutex);
      const auto [entry, is_new] = table().programs.try_emplace(std::move(key), answer.program);
      signatures_ += is_new ? 1 : 0;
      return entry->second;
    }
    return answer.program;
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
  std::unique_ptr<const Facts> facts_;
  std::atomic<int64_t> calls_{0};
  std::atomic<int> signatures_{0};  // in the table
  std::atomic<bool> warned_{false};
};

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    if (!is_documented(base_name(name.name))) continue;  // a name costs less than a schema
    auto op = dispatcher.findSchema(name);
    if (op && is_eager_operation(*op)) {
      m.impl(c10::toString(name).c_str(),
             torch::CppFunction::makeFromBoxedFunctor(std::make_unique<EagerKernel>()));
    }
  }
}

}  // namespace

// Forms that take a dtype have no kernel anywhere else either; composite ones are other operations
// by the time they get here.
bool is_eager_operation(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (!is_documented(base_name(schema))) return false;
  if (schema.overload_name().find("dtype") != std::string::npos) return false;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return true;
  // Without a CPU kernel of their own: of those, the plain forms. The others end in these.
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         schema.overload_name().empty();
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
  std::map<std::array<int64_t, 4>, at::Tensor> dropped;
  std::lock_guard lock(table().numbers_mutex);
  if (table().numbers.size() >= kMaxNumbers) dropped.swap(table().numbers);
  return table().numbers.try_emplace(key, tensor).first->second;
}

}  // namespace spyre
