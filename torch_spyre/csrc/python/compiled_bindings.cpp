// What the host code of compiled graphs calls: tensors in the layout a graph was compiled for.
#include "python/compiled_bindings.h"

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>

#include "hooks/integers.h"
#include "hooks/storage.h"
#include "launch/job_plan.h"
#include "python/bindings.h"
#include "runtime.h"

namespace spyre {
namespace {

namespace py = pybind11;

SpyreStorageImpl& storage_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined() && tensor.device().type() == kSpyre && tensor.has_storage(),
              "expected a dense tensor on spyre");
  return *spyre_storage(tensor);
}

// Layout, sizes and strides; None for a storage without a layout.
py::object get_placement(const at::Tensor& tensor) {
  const TilingPtr tiling = storage_of(tensor).tiling;
  if (!tiling) return py::none();
  const card::Placement& placement = tiling->placement;
  return py::make_tuple(placement.layout, placement.sizes, placement.strides);
}

// Whether a kernel that was compiled for the layout can take the tensor as it is.
bool is_placed(const at::Tensor& tensor, const card::StickLayout& layout) {
  if (tensor.storage_offset() != 0) return false;
  const TilingPtr tiling = storage_of(tensor).tiling;
  return tiling && tiling->placement.layout == layout;
}

// Gives a whole storage another layout, in place: all that share it go on with the same elements.
void lay_out(const at::Tensor& tensor, const card::StickLayout& layout) {
  auto& storage = storage_of(tensor);
  const size_t elements = storage.nbytes() / tensor.element_size();
  TORCH_CHECK(tensor.storage_offset() == 0 && static_cast<size_t>(tensor.numel()) == elements,
              "only a tensor that is its whole storage can be laid out again, found one of ",
              tensor.numel(), " elements at ", tensor.storage_offset(), " of ", elements);
  reshape_storage(storage, storage.nbytes(),
                  explicit_tiling(tensor.sizes(), tensor.strides(), tensor.scalar_type(), layout));
}

at::Tensor empty_spyre(const card::Dims& size, const card::Dims& stride, const py::object& dtype,
                       const std::optional<card::StickLayout>& layout, int index) {
  const at::ScalarType type = to_scalar_type(dtype);
  const auto device = static_cast<c10::DeviceIndex>(index);
  TilingPtr tiling =
      layout ? explicit_tiling(size, stride, type, *layout) : default_tiling(size, stride, type);
  return new_tensor(size, stride, type, device, std::move(tiling));
}

// ---- Calls of kernels --------------------------------------------------------------------------

// A kernel as it is called: what it expects of its tensors, and where it is loaded.
struct CompiledKernel {
  struct Loaded {
    JobPlanPtr plan;
    std::vector<at::Tensor> constants;
  };
  bool has_pool = false;
  std::vector<card::StickLayout> layouts;  // of its arguments, the pool not counted
  std::vector<bool> written;               // which of them it writes
  std::vector<Loaded> by_card;
};

bool fits(const at::Tensor& tensor, const card::StickLayout& layout, const c10::Device& on) {
  if (!tensor.defined() || tensor.device() != on || !tensor.has_storage()) return false;
  if (tensor.storage_offset() != 0) return false;
  const TilingPtr& tiling = spyre_storage(tensor)->tiling;
  return tiling && tiling->placement.layout == layout;
}

// Queues the kernel if it is loaded on the card of its first tensor and all tensors are as it
// expects them. False: nothing has happened, and the caller has to see to it. `self` is a capsule.
PyObject* launch_kernel_call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  auto* kernel = static_cast<CompiledKernel*>(PyCapsule_GetPointer(self, nullptr));
  if (kernel == nullptr) return nullptr;
  const size_t first = kernel->has_pool ? 1 : 0;
  if (static_cast<size_t>(count) != first + kernel->layouts.size()) Py_RETURN_FALSE;
  std::vector<at::Tensor> tensors;
  tensors.reserve(count + 8);
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!THPVariable_Check(args[i])) Py_RETURN_FALSE;
    tensors.push_back(THPVariable_Unpack(args[i]));
  }
  if (tensors.empty() || tensors[0].device().type() != kSpyre) Py_RETURN_FALSE;
  const c10::Device card = tensors[0].device();
  const auto index = static_cast<size_t>(card.index());
  if (index >= kernel->by_card.size() || !kernel->by_card[index].plan) Py_RETURN_FALSE;
  for (size_t i = 0; i < kernel->layouts.size(); i++) {
    if (!fits(tensors[first + i], kernel->layouts[i], card)) Py_RETURN_FALSE;
  }
  const auto& loaded = kernel->by_card[index];
  tensors.insert(tensors.end(), loaded.constants.begin(), loaded.constants.end());
  const JobPlanPtr plan = loaded.plan;
  {
    NoGil no_gil;
    launch(plan, tensors);
  }
  for (size_t i = 0; i < kernel->written.size(); i++) {
    if (kernel->written[i]) forget_limits(tensors[first + i]);
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef launch_method = {
    "launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&launch_kernel_call)),
    METH_FASTCALL, "Queue the kernel; False when a tensor is not as expected."};

// ---- Outputs -----------------------------------------------------------------------------------

// Everything about a tensor but its memory.
struct Output {
  card::Dims size, stride;
  at::ScalarType dtype;
  c10::DeviceIndex device;
  TilingPtr tiling;
};

PyObject* make_output(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  const auto* output = static_cast<const Output*>(PyCapsule_GetPointer(self, nullptr));
  if (output == nullptr) return nullptr;
  return THPVariable_Wrap(
      new_tensor(output->size, output->stride, output->dtype, output->device, output->tiling));
  END_HANDLE_TH_ERRORS
}

PyMethodDef output_method = {"empty", &make_output, METH_NOARGS, "A new tensor."};

// ---- Copies of parameters ----------------------------------------------------------------------

// The copy that belongs to a tensor as it was at one version. It keeps neither of them alive. When
// the tensor is gone, another one may have its address, but never its weak reference.
struct Remembered {
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::optional<Weak> source, copy;
  uint32_t version = 0;
};

bool has_version(const at::Tensor& tensor) { return !tensor.is_inference(); }

PyObject* find_remembered(PyObject* self, PyObject* argument) {
  HANDLE_TH_ERRORS
  const auto* known = static_cast<const Remembered*>(PyCapsule_GetPointer(self, nullptr));
  if (known == nullptr) return nullptr;
  if (!THPVariable_Check(argument) || !known->source) Py_RETURN_NONE;
  const at::Tensor& tensor = THPVariable_Unpack(argument);
  const bool same = known->source->_unsafe_get_target() == tensor.unsafeGetTensorImpl() &&
                    !known->source->expired() && has_version(tensor) &&
                    tensor._version() == known->version;
  auto copy = same ? known->copy->lock() : at::Tensor().getIntrusivePtr();
  if (!copy.defined()) Py_RETURN_NONE;
  return THPVariable_Wrap(at::Tensor(std::move(copy)));
  END_HANDLE_TH_ERRORS
}

PyMethodDef remembered_method = {"find", &find_remembered, METH_O,
                                 "The copy of a tensor that has not changed, or None."};

// ---- Callables over a capsule ------------------------------------------------------------------

template <typename State>
py::tuple callable(PyMethodDef& method, std::unique_ptr<State> state) {
  py::capsule capsule(state.release(), [](void* pointer) { delete static_cast<State*>(pointer); });
  auto call = py::reinterpret_steal<py::object>(PyCFunction_NewEx(&method, capsule.ptr(), nullptr));
  if (!call) throw py::error_already_set();
  return py::make_tuple(std::move(call), std::move(capsule));
}

py::tuple compiled_kernel(bool has_pool, std::vector<card::StickLayout> layouts,
                          std::vector<bool> written) {
  TORCH_CHECK_VALUE(layouts.size() == written.size(), "one layout and one flag for each argument");
  auto kernel = std::make_unique<CompiledKernel>();
  kernel->has_pool = has_pool;
  kernel->layouts = std::move(layouts);
  kernel->written = std::move(written);
  return callable(launch_method, std::move(kernel));
}

py::object output(const card::Dims& size, const card::Dims& stride, const py::object& dtype,
                  const std::optional<card::StickLayout>& layout, int index) {
  const at::ScalarType type = to_scalar_type(dtype);
  auto made = std::make_unique<Output>(Output{
      size, stride, type, static_cast<c10::DeviceIndex>(index),
      layout ? explicit_tiling(size, stride, type, *layout) : default_tiling(size, stride, type)});
  return callable(output_method, std::move(made))[0];
}

py::tuple remembered() { return callable(remembered_method, std::make_unique<Remembered>()); }

void remember(const py::capsule& capsule, const at::Tensor& source, const at::Tensor& copy) {
  auto* known = capsule.get_pointer<Remembered>();
  known->source.reset();
  if (!has_version(source)) return;
  known->source.emplace(source.getIntrusivePtr());
  known->copy.emplace(copy.getIntrusivePtr());
  known->version = source._version();
}

void load_compiled_kernel(const py::capsule& capsule, int index, const JobPlanPtr& plan,
                          const std::vector<at::Tensor>& constants) {
  auto* kernel = capsule.get_pointer<CompiledKernel>();
  TORCH_CHECK_INDEX(index >= 0, "a card has a number from 0 on, found ", index);
  if (kernel->by_card.size() <= static_cast<size_t>(index)) kernel->by_card.resize(index + 1);
  kernel->by_card[index] = {plan, constants};
}

}  // namespace

void bind_compiled(py::module& m) {
  m.def("_compiled_kernel", &compiled_kernel, py::arg("has_pool"), py::arg("layouts"),
        py::arg("written"),
        "A kernel that can be called: (launch, capsule). launch(*tensors) queues it, or returns "
        "False when it is not loaded on the card of the tensors or one is not as expected.");
  m.def("_load_compiled_kernel", &load_compiled_kernel, py::arg("capsule"), py::arg("index"),
        py::arg("plan"), py::arg("constants"), "Make a kernel ready on a card.");
  m.def("_output", &output, py::arg("size"), py::arg("stride"), py::arg("dtype"), py::arg("layout"),
        py::arg("index"),
        "A callable that makes tensors of this kind; layout None is the default one.");
  m.def("_remembered", &remembered,
        "A place for the copy of one tensor: (find, capsule). find(tensor) is the copy, or None "
        "for another tensor or one that has changed.");
  m.def("_remember", &remember, py::arg("capsule"), py::arg("source"), py::arg("copy"),
        "Put a copy there.");
  m.def(
      "_integer_class",
      [](const at::Tensor& tensor) { return static_cast<int>(integer_class(tensor)); },
      py::arg("tensor"),
      "How large the numbers of an int64 tensor are: 1 (a mask), 24, 32 bits, or 64 (carried).");
  m.def("_get_placement", &get_placement, py::arg("tensor"));
  m.def("_is_placed", &is_placed, py::arg("tensor"), py::arg("layout"));
  m.def("_lay_out", &lay_out, py::arg("tensor"), py::arg("layout"));
  m.def("_empty_spyre", &empty_spyre, py::arg("size"), py::arg("stride"), py::arg("dtype"),
        py::arg("layout"), py::arg("index"));
}

}  // namespace spyre
