// Conversions between Python objects and ours that the module needs.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/utils/pybind.h>

#include "card/memory/layout.h"

namespace spyre {

c10::ScalarType to_scalar_type(const pybind11::object& dtype);      // torch.dtype only
c10::DeviceIndex to_device_index(const pybind11::object& device);   // None, int, str, torch.device
pybind11::tuple layout_to_state(const card::StickLayout& layout);   // pickle, version 3
card::StickLayout layout_from_state(const pybind11::tuple& state);  // versions 1 to 3

}  // namespace spyre
