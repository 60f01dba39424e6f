// What the host code of compiled graphs calls: tensors in the layout a graph was compiled for.
#include "compiled_bindings.h"

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "runtime.h"
#include "storage.h"

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

at::Tensor empty_spyre(const card::Dims& size, const card::Dims& stride, const py::object& dtype,
                       const std::optional<card::StickLayout>& layout, int index) {
  const at::ScalarType type = to_scalar_type(dtype);
  const auto device = static_cast<c10::DeviceIndex>(index);
  TilingPtr tiling =
      layout ? explicit_tiling(size, stride, type, *layout) : default_tiling(size, stride, type);
  return new_tensor(size, stride, type, device, std::move(tiling));
}

}  // namespace

void bind_compiled(py::module& m) {
  m.def("_get_placement", &get_placement, py::arg("tensor"));
  m.def("_is_placed", &is_placed, py::arg("tensor"), py::arg("layout"));
  m.def("_empty_spyre", &empty_spyre, py::arg("size"), py::arg("stride"), py::arg("dtype"),
        py::arg("layout"), py::arg("index"));
}

}  // namespace spyre
