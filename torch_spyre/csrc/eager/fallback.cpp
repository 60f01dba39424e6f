// The boxed path: copy the operands to the host, run the CPU kernel, round and copy back.
//
// One function serves every ATen operation that has no kernel for the device. Its steps:
//   1. collect the spyre tensors among the arguments and decide how each is mirrored on the host:
//      arguments that share a written storage are mirrored as views of one image of it;
//   2. replace tensors, devices and generators in the stack by their host twins;
//   3. run the CPU kernel;
//   4. copy written arguments back (an `out=` that the kernel resized is resized on the card);
//   5. replace the results: an alias of an argument by that argument, a view by the same view of
//   the
//      device tensor, everything else by a new device tensor.

#include "eager/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "eager/operations.h"
#include "hooks/copy.h"
#include "hooks/hooks.h"
#include "hooks/storage.h"

namespace spyre {
namespace {

using c10::IValue;
using torch::jit::Stack;

// ---- counting and reporting --------------------------------------------------------------------

std::mutex g_counts_mutex;
struct Count {
  std::string name;  // a copy: the schema of an operation from a library that was unloaded is gone
  int64_t calls = 0;
  bool warned = false;
};
std::unordered_map<const c10::FunctionSchema*, Count> g_counts;
std::atomic<void (*)(const FallbackReport&)> g_warner{nullptr};
std::atomic<int> g_warning{-1};  // -1: as the settings say

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

// True when the operation is to be warned about: on its first call while warnings are on.
bool add_count(const c10::FunctionSchema& schema) {
  std::lock_guard<std::mutex> lock(g_counts_mutex);
  auto& entry = g_counts[&schema];
  if (entry.name.empty()) entry.name = full_name(schema);
  entry.calls++;
  if (entry.warned || !get_fallback_warning()) return false;
  return entry.warned = true;
}

const char* const kNoProgram = "the card has no program for it";

// Counts a call, and once it has succeeded says what it cost. An operation that fails is warned
// about the next time.
class Counted {
 public:
  explicit Counted(const c10::FunctionSchema& schema, std::string why = kNoProgram)
      : schema_(schema), is_new_(add_count(schema) && g_warner.load() != nullptr) {
    if (!is_new_) return;
    report_.op = full_name(schema);
    report_.why = std::move(why);
    start_ = std::chrono::steady_clock::now();
  }
  ~Counted() {
    if (!is_new_) return;
    std::lock_guard<std::mutex> lock(g_counts_mutex);
    g_counts[&schema_].warned = false;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  void to_host(const at::Tensor& t) { report_.bytes_to_host += bytes(t); }
  void to_card(const at::Tensor& t) { report_.bytes_to_card += bytes(t); }
  void done() {
    if (!is_new_) return;
    const std::chrono::duration<double, std::milli> time =
        std::chrono::steady_clock::now() - start_;
    report_.milliseconds = time.count();
    is_new_ = false;
    g_warner.load()(report_);
  }

 private:
  static int64_t bytes(const at::Tensor& t) {
    return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  }

  const c10::FunctionSchema& schema_;
  bool is_new_;
  FallbackReport report_;
  std::chrono::steady_clock::time_point start_;
};

// ---- host twins of device tensors --------------------------------------------------------------

bool on_spyre(const at::Tensor& t) { return t.defined() && t.device().type() == kSpyre; }

struct Twin {
  at::Tensor device;
  at::Tensor host;
  bool written = false;   // the schema says that the operation writes it
  bool contents = false;  // its old values may be read: false for a plain `out=`
};

c10::StorageImpl* storage_of(const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); }

bool is_expanded(const at::Tensor& t) {
  for (int64_t d = 0; d < t.dim(); d++) {
    if (t.stride(d) == 0 && t.size(d) > 1) return true;
  }
  return false;
}

// Expanded dimensions are copied once and expanded again on the host, which keeps both the cost
// and the CPU kernels' complaints about writing to expanded tensors.
at::Tensor read_expanded(const at::Tensor& t) {
  auto narrow = t;
  for (int64_t d = 0; d < t.dim(); d++) {
    if (t.stride(d) == 0 && t.size(d) > 1) narrow = narrow.narrow(d, 0, 1);
  }
  return to_host(narrow).expand(t.sizes());
}

class Twins {
 public:
  void add(const at::Tensor& t, bool written, bool contents) {
    auto [entry, is_new] = by_device_.try_emplace(t.unsafeGetTensorImpl(), twins_.size());
    if (is_new) {
      TORCH_CHECK(t.layout() == c10::kStrided, "spyre tensors are strided, got layout ",
                  t.layout());
      twins_.push_back({t, {}, written, contents});
    }
    auto& twin = twins_[entry->second];
    twin.written |= written;
    twin.contents |= contents;
    auto& use = storages_[storage_of(t)];
    use.twins += is_new ? 1 : 0;
    use.written |= written;
  }

  void make() {
    for (auto& twin : twins_) {
      if (shares_written_storage(twin)) {
        twin.host = make_on_image(twin);
      } else {
        twin.host = make_alone(twin);
      }
      copy_bits(twin);
    }
  }

  const Twin* find(const at::Tensor& device) const {
    auto entry = by_device_.find(device.unsafeGetTensorImpl());
    return entry == by_device_.end() ? nullptr : &twins_[entry->second];
  }
  const Twin* find_host(const at::Tensor& host) const {
    for (auto& twin : twins_) {
      if (twin.host.is_same(host)) return &twin;
    }
    return nullptr;
  }
  std::vector<Twin>& all() { return twins_; }

 private:
  struct StorageUse {
    int twins = 0;
    bool written = false;
    at::Tensor image;
  };

  bool shares_written_storage(const Twin& twin) const {
    if (twin.device.numel() == 0) return false;
    const auto& use = storages_.at(storage_of(twin.device));
    return use.twins > 1 && use.written;
  }

  at::Tensor make_on_image(const Twin& twin) {
    for (auto& other : twins_) {  // the very same view twice is the very same host tensor
      if (&other == &twin) break;
      if (storage_of(other.device) == storage_of(twin.device) &&
          same_view(other.device, twin.device)) {
        return other.host;
      }
    }
    auto& image = storages_[storage_of(twin.device)].image;
    if (!image.defined()) image = read_image(*spyre_storage(twin.device));
    auto host = at::empty({0}, twin.device.options().device(at::kCPU));
    return host.set_(image.storage(), twin.device.storage_offset(), twin.device.sizes(),
                     twin.device.strides());
  }

  static at::Tensor make_alone(const Twin& twin) {
    const auto& t = twin.device;
    if (is_expanded(t)) return read_expanded(t);
    if (twin.contents) return to_host(t);
    auto strides = t.is_non_overlapping_and_dense()
                       ? t.strides().vec()
                       : at::infer_dense_strides(t.sizes(), t.strides());
    return at::empty_strided(t.sizes(), strides, t.options().device(at::kCPU));
  }

  static void copy_bits(Twin& twin) {
    if (C10_UNLIKELY(twin.device.is_conj())) twin.host._set_conj(true);
    if (C10_UNLIKELY(twin.device.is_neg())) twin.host._set_neg(true);
    if (C10_UNLIKELY(twin.device.unsafeGetTensorImpl()->is_wrapped_number())) {
      twin.host.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
  }

  std::vector<Twin> twins_;
  std::unordered_map<c10::TensorImpl*, size_t> by_device_;
  std::unordered_map<c10::StorageImpl*, StorageUse> storages_;
};

// ---- generators --------------------------------------------------------------------------------

// CPU kernels take CPU generators only: one that carries the device generator's state stands in,
// and gives it back at the end. Meanwhile no other thread may draw from the lender.
class GeneratorLoan {
 public:
  explicit GeneratorLoan(at::Generator lender)
      : lender_(std::move(lender)),
        lock_(lender_.mutex()),
        stand_in_(at::detail::createCPUGenerator()) {
    pass(lender_, stand_in_);
  }
  ~GeneratorLoan() { pass(stand_in_, lender_); }
  GeneratorLoan(const GeneratorLoan&) = delete;
  GeneratorLoan& operator=(const GeneratorLoan&) = delete;

  const at::Generator& stand_in() const { return stand_in_; }

 private:
  static at::CPUGeneratorImpl& impl(const at::Generator& g) {
    return *static_cast<at::CPUGeneratorImpl*>(g.unsafeGetGeneratorImpl());
  }
  static void pass(const at::Generator& source, const at::Generator& target) {
    auto &from = impl(source), &to = impl(target);
    to.set_engine(from.engine());
    to.set_next_float_normal_sample(from.next_float_normal_sample());
    to.set_next_double_normal_sample(from.next_double_normal_sample());
  }

  at::Generator lender_;
  std::unique_lock<std::mutex> lock_;
  at::Generator stand_in_;
};

// The generator that a CPU kernel draws from: one of the CPU's itself, so that the numbers are
// those that it gives there, or one that stands in for a card's.
class HostGenerator {
 public:
  // `for_card`: the call has tensors of a card, or makes some.
  HostGenerator(const IValue& given, c10::DeviceIndex device, bool for_card,
                const c10::FunctionSchema& schema) {
    if (given.isNone() || !given.toGenerator().defined()) {
      loan_.emplace(default_generator(device));
      return;
    }
    auto generator = given.toGenerator();
    TORCH_CHECK(for_card || generator.device().is_cpu(),
                "Expected a generator of the cpu, where the tensors are, but found one of ",
                generator.device(), " (when calling ", full_name(schema), ")");
    if (generator.device().is_cpu()) {
      of_cpu_ = std::move(generator);
      return;
    }
    c10::Device expected(kSpyre, device);
    TORCH_CHECK(generator.device() == expected, "Expected a generator of ", expected,
                " or of the cpu, but found one of ", generator.device(), " (when calling ",
                full_name(schema), ")");
    loan_.emplace(std::move(generator));
  }

  const at::Generator& get() const { return loan_ ? loan_->stand_in() : of_cpu_; }

 private:
  std::optional<GeneratorLoan> loan_;
  at::Generator of_cpu_;
};

// ---- arguments ---------------------------------------------------------------------------------

// Batch norm updates its running statistics without saying so in its schema.
bool is_written_silently(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  if (argument.name() != "running_mean" && argument.name() != "running_var") return false;
  return schema.name() == "aten::native_batch_norm" ||
         schema.name() == "aten::batch_norm_update_stats";
}

bool is_written(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return true;
  return C10_UNLIKELY(is_written_silently(schema, argument));
}

template <class Visit>
void visit_tensors(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) visit(t);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
      if (t) visit(*t);
    }
  }
}

template <class Map>
IValue map_tensors(const IValue& value, const Map& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(map(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
      list.push_back(t ? std::optional<at::Tensor>(map(*t)) : std::nullopt);
    }
    return list;
  }
  return value;
}

// Operations that take host tensors beside device tensors on every accelerator.
bool accepts_host_tensors(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::index",
      "aten::index_put",
      "aten::index_put_",
      "aten::_index_put_impl_",
      "aten::_unsafe_index",
      "aten::_unsafe_index_put",
      "aten::_pack_padded_sequence",
      "aten::_pack_padded_sequence_backward",
      "aten::_copy_from",
      "aten::copy",
      "aten::_foreach_copy_",
      "aten::_foreach_copy",
  };
  return names.count(name) > 0;
}

// The result of these stays on the host on every accelerator, by position.
bool result_stays_on_host(const std::string& name, size_t position) {
  return name == "aten::_pack_padded_sequence" && position == 1;
}

struct Target {
  std::optional<c10::DeviceIndex> device;
  bool host_operand = false;  // a host tensor that is more than a scalar

  void see(const at::Tensor& t, const c10::FunctionSchema& schema) {
    if (!t.defined()) return;
    if (!on_spyre(t)) {
      host_operand |= t.dim() > 0;
      return;
    }
    auto index = t.device().index();
    TORCH_CHECK(
        !device || *device == index,
        "Expected all tensors to be on the same device, but found at least two devices, spyre:",
        static_cast<int>(*device), " and spyre:", static_cast<int>(index), "! (when calling ",
        full_name(schema), ")");
    device = index;
  }
};

// ---- results -----------------------------------------------------------------------------------

// The argument whose alias set a result belongs to, or -1.
int64_t aliased_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr) return -1;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info != nullptr && info->beforeSet() == result.alias_info()->beforeSet())
      return static_cast<int64_t>(i);
  }
  return -1;
}

at::Tensor view_like(const at::Tensor& base, const at::Tensor& host_base,
                     const at::Tensor& host_view) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      host_view.is_alias_of(host_base) && base.strides() == host_base.strides(),
      "this view operation cannot be expressed on a spyre tensor; copy the tensor to the cpu "
      "first");
  auto offset = base.storage_offset() + host_view.storage_offset() - host_base.storage_offset();
  return base.as_strided(host_view.sizes(), host_view.strides(), offset);
}

void write_back(const Twin& twin) {
  const auto& [device, host, written, contents] = twin;
  if (device.sizes() != host.sizes()) {
    device.resize_(host.sizes());
    if (host.is_non_overlapping_and_dense() && device.strides() != host.strides() &&
        device.storage_offset() == 0) {
      device.as_strided_(host.sizes(), host.strides());
    }
  }
  copy_tensor(host, device, false);
}

at::Tensor to_result(const at::Tensor& host, c10::DeviceIndex device, const Twins& twins,
                     const c10::FunctionSchema& schema) {
  if (!host.defined()) return host;
  if (!host.is_cpu()) return host;
  TORCH_CHECK_NOT_IMPLEMENTED(host.layout() == c10::kStrided, full_name(schema),
                              " gives a tensor with layout ", host.layout(),
                              ", which spyre does not have; copy the operands to the cpu first");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !host.is_quantized(), full_name(schema),
      " gives a quantized tensor, which spyre does not have; copy the operands to the cpu first");
  if (const Twin* twin = twins.find_host(host)) return twin->device;
  if (C10_UNLIKELY(host.is_conj() || host.is_neg()))
    return to_spyre(host.resolve_conj().resolve_neg(), device);
  return to_spyre(host, device);
}

void replace_result(IValue& value, const c10::FunctionSchema& schema, size_t position,
                    const Stack& originals, c10::DeviceIndex device, const Twins& twins) {
  const auto& result = schema.returns()[position];
  int64_t source = aliased_argument(schema, result);
  if (source >= 0 && result.alias_info()->isWrite()) {
    value = originals[source];
    return;
  }
  if (result_stays_on_host(schema.name(), position)) return;
  if (source >= 0 && originals[source].isTensor() && on_spyre(originals[source].toTensor())) {
    const auto& base = originals[source].toTensor();
    const Twin* twin = twins.find(base);
    value = map_tensors(value, [&](const at::Tensor& t) { return view_like(base, twin->host, t); });
    return;
  }
  value =
      map_tensors(value, [&](const at::Tensor& t) { return to_result(t, device, twins, schema); });
}

// ---- the path ----------------------------------------------------------------------------------

void run_on_host(const c10::OperatorHandle& op, const c10::FunctionSchema& reported, Stack* stack,
                 const std::string& why = kNoProgram) {
  const auto& schema = op.schema();
  const size_t num_arguments = schema.arguments().size();
  const size_t first = stack->size() - num_arguments;
  Counted counted(reported, why);

  Twins twins;
  Target target;
  std::optional<at::Device> device_argument;
  for (size_t i = 0; i < num_arguments; i++) {
    const IValue& value = (*stack)[first + i];
    if (value.isDevice()) device_argument = value.toDevice();
    const auto& argument = schema.arguments()[i];
    bool written = is_written(schema, argument);
    bool contents = !(written && argument.kwarg_only());  // `out=` arguments are overwritten
    visit_tensors(value, [&](const at::Tensor& t) {
      target.see(t, reported);
      if (on_spyre(t)) twins.add(t, written, contents);
    });
  }
  TORCH_CHECK(
      !target.host_operand || !target.device || accepts_host_tensors(schema.name()),
      "Expected all tensors to be on the same device, but found at least two devices, spyre:",
      static_cast<int>(target.device.value_or(0)), " and cpu! (when calling ", full_name(reported),
      ")");
  if (target.host_operand && target.device && schema.name().find("index") != std::string::npos) {
    TORCH_CHECK(
        on_spyre((*stack)[first].toTensor()),
        "indices should be either on cpu or on the same device as the indexed tensor (cpu); copy "
        "the indices to the cpu first (when calling ",
        full_name(reported), ")");
  }
  c10::DeviceIndex device = target.device.value_or(current_device());
  if (device_argument && device_argument->type() == kSpyre)
    device = resolve_device(*device_argument);
  bool results_on_spyre = !device_argument || device_argument->type() == kSpyre;
  bool for_card = target.device || (device_argument && results_on_spyre);
  twins.make();
  for (const auto& twin : twins.all()) {
    if (twin.contents) counted.to_host(twin.device);
  }

  Stack originals(stack->begin() + static_cast<int64_t>(first), stack->end());
  std::optional<HostGenerator> generator;
  for (size_t i = 0; i < num_arguments; i++) {
    IValue& value = (*stack)[first + i];
    const auto& type = *schema.arguments()[i].real_type();
    bool takes_generator = type.isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
    if (takes_generator) {
      generator.emplace(value, device, for_card, reported);
      value = generator->get();
    } else if (value.isDevice()) {
      if (value.toDevice().type() == kSpyre) value = c10::Device(at::kCPU);
    } else {
      value = map_tensors(
          value, [&](const at::Tensor& t) { return on_spyre(t) ? twins.find(t)->host : t; });
    }
  }

  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  generator.reset();

  for (auto& twin : twins.all()) {
    if (!twin.written) continue;
    write_back(twin);
    counted.to_card(twin.device);
  }
  if (!results_on_spyre) return counted.done();
  const size_t num_results = schema.returns().size();
  for (size_t r = 0; r < num_results; r++) {
    IValue& result = (*stack)[stack->size() - num_results + r];
    replace_result(result, schema, r, originals, device, twins);
    if (schema.returns()[r].alias_info() != nullptr) continue;  // written back already, or a view
    visit_tensors(result, [&](const at::Tensor& t) { counted.to_card(t); });
  }
  counted.done();
}

void fallback(const c10::OperatorHandle& op, Stack* stack) { run_on_host(op, op.schema(), stack); }

// Operations with a kernel for every device that only throws: they are other operations on the
// host.
c10::OperatorHandle find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void convolution(const c10::OperatorHandle& op, Stack* stack) {
  static auto host_op = find_op("aten::convolution");
  run_on_host(host_op, op.schema(), stack);
}

void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  // (grad_output, input, weight, stride, ...) -> (grad_output, input, weight, bias_sizes, stride,
  // ...)
  static auto host_op = find_op("aten::convolution_backward");
  const size_t first = stack->size() - op.schema().arguments().size();
  auto grad = (*stack)[first].toTensor();
  IValue bias_sizes(c10::List<int64_t>({grad.size(1)}));
  stack->insert(stack->begin() + static_cast<int64_t>(first) + 3, bias_sizes);
  run_on_host(host_op, op.schema(), stack);
}

// The one random operation with a CPU kernel but no generator argument: the CPU kernel would draw
// from the CPU's generator. The same steps, with the device's.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  static auto op = find_op("aten::native_dropout");
  Counted counted(op.schema());
  counted.to_host(input);
  auto device = input.device().index();
  auto host = to_host(input);
  auto mask = at::ones_like(host, host.options().dtype(at::kBool));
  if (train.value_or(true)) {
    double kept = 1.0 - p;
    GeneratorLoan loan(default_generator(device));
    mask.bernoulli_(kept, loan.stand_in());
    host = host.mul(mask).mul_(kept == 0 ? 0.0 : 1.0 / kept);
  }
  const std::tuple results = {to_spyre(host, device), to_spyre(mask, device)};
  counted.to_card(host);
  counted.to_card(mask);
  counted.done();
  return results;
}

// Of integers: other accelerators count them, and models of experts rely on it, but the CPU has no
// kernel for them. Doubles hold those that are counted into bins exactly.
at::Tensor count_bins(const at::Tensor& input, int64_t bins, const at::Scalar& min,
                      const at::Scalar& max) {
  static auto op = find_op("aten::histc");
  Counted counted(op.schema());
  counted.to_host(input);
  auto host = to_host(input);
  bool whole = c10::isIntegralType(host.scalar_type(), /*includeBool=*/false);
  auto counts = at::histc(whole ? host.to(at::kDouble) : host, bins, min, max);
  counted.to_card(counts);
  counted.done();
  return to_spyre(counts.to(host.scalar_type()), input.device().index());
}

at::Tensor& count_bins_out(const at::Tensor& input, int64_t bins, const at::Scalar& min,
                           const at::Scalar& max, at::Tensor& out) {
  auto counts = count_bins(input, bins, min, max);
  TORCH_CHECK(
      out.scalar_type() == counts.scalar_type(),
      "torch.histogram: input tensor and hist tensor should have the same dtype, but got input ",
      counts.scalar_type(), " and hist ", out.scalar_type());
  at::native::resize_output(out, counts.sizes());
  return out.copy_(counts);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Where PyTorch has both a CPU kernel and a composite one for every device, the device would get
// the composite: more operations, each rounding its result. The CPU kernel in one piece is better.
bool has_composite_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNamesForDispatchKey(c10::DispatchKey::CPU)) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findOp(name);
    if (op && has_composite_kernel(*op) && !is_eager_operation(*op)) {
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
    }
  }
  m.impl("native_dropout", native_dropout);
  m.impl("histc", count_bins);
  m.impl("histc.out", count_bins_out);
  // Has a kernel for every device that then accepts only the built-in ones.
  m.impl("mode.values", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace

void run_boxed(const c10::OperatorHandle& op, Stack* stack, const std::string& why) {
  run_on_host(op, op.schema(), stack, why);
}

void count_converting_copy() {
  static auto op = find_op("aten::_copy_from");
  if (!add_count(op.schema())) return;
  TORCH_WARN("D2D dtype conversion between spyre tensors takes the CPU as intermediate");
}

std::map<std::string, int64_t> fallback_counts() {
  std::lock_guard<std::mutex> lock(g_counts_mutex);
  std::map<std::string, int64_t> result;
  for (auto& [schema, entry] : g_counts) {
    if (entry.calls > 0) result[entry.name] += entry.calls;
  }
  return result;
}

void reset_fallback_counts() {
  std::lock_guard<std::mutex> lock(g_counts_mutex);
  for (auto& [schema, entry] : g_counts) entry.calls = 0;
}

void set_fallback_warner(void (*warner)(const FallbackReport&)) { g_warner = warner; }
bool get_fallback_warning() {
  int value = g_warning.load();
  return value < 0 ? settings().fallback_warning : value != 0;
}
void set_fallback_warning(bool enabled) { g_warning = enabled ? 1 : 0; }

}  // namespace spyre
