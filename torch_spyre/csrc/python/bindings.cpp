#include "python/bindings.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include "runtime.h"

namespace spyre {

namespace py = pybind11;

c10::ScalarType to_scalar_type(const py::object& dtype) {
  TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "expected a torch.dtype, got ",
                   std::string(py::str(py::type::of(dtype))));
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

c10::DeviceIndex to_device_index(const py::object& device) {
  if (device.is_none()) return current_device();
  if (py::isinstance<py::int_>(device)) {
    auto index = device.cast<int64_t>();
    return index == -1 ? current_device() : check_device_index(index);
  }
  if (THPDevice_Check(device.ptr()))
    return resolve_device(reinterpret_cast<THPDevice*>(device.ptr())->device);
  if (py::isinstance<py::str>(device))
    return resolve_device(c10::Device(device.cast<std::string>()));
  TORCH_CHECK_TYPE(false, "expected a device index, a device string or a torch.device, got ",
                   std::string(py::str(py::type::of(device))));
}

py::tuple layout_to_state(const card::StickLayout& layout) {
  return py::make_tuple(3, layout.device_size, layout.stride_map, layout.format,
                        layout.arrangement);
}

card::StickLayout layout_from_state(const py::tuple& state) {
  int64_t version = state[0].cast<int64_t>();
  auto dims = [&](size_t i) { return state[i].cast<card::Dims>(); };
  card::StickLayout layout;
  if (version == 3 && state.size() == 5) {
    layout = {dims(1), dims(2), state[3].cast<card::DataFormat>(),
              state[4].cast<card::ElementArrangement>()};
  } else if (version == 2 && state.size() == 4) {
    layout = {dims(1), dims(2), state[3].cast<card::DataFormat>()};
  } else if (version == 1 && state.size() == 5) {  // had a dim_map, which stride_map replaced
    layout = {dims(1), dims(3), state[4].cast<card::DataFormat>()};
  } else {
    TORCH_CHECK_VALUE(false, "a pickled SpyreTensorLayout of version ", version, " with ",
                      state.size(), " fields; versions 1, 2 and 3 are known");
  }
  card::check_layout(layout);
  return layout;
}

}  // namespace spyre
