// Which element format a torch dtype has on the card and in host memory.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "card/numerics/formats.h"

namespace spyre {

// INVALID for dtypes without a device format; tensors of those are carried untiled.
card::DataFormat device_format(c10::ScalarType dtype);
// The same, but throws "Spyre backend does not support dtype X".
card::DataFormat checked_device_format(c10::ScalarType dtype);
// How host memory of this dtype is converted; RAW for carried dtypes and for bytes that are copied.
card::HostType host_type(c10::ScalarType dtype);
// True when DMA converts host elements of `host` straight into a device tensor of `device`.
bool converts_directly(c10::ScalarType host, c10::ScalarType device);

}  // namespace spyre
