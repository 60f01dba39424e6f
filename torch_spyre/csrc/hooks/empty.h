// Tensors with an explicit layout; the plain forms are reached through aten::empty.
#pragma once

#include <ATen/core/Tensor.h>

#include "card/memory/layout.h"

namespace spyre {

// The strides of a new tensor; throws when its size overflows.
c10::SmallVector<int64_t, 6> strides_for(c10::IntArrayRef sizes,
                                         std::optional<at::MemoryFormat> format);

at::Tensor spyre_empty_with_layout(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                   at::ScalarType dtype, const card::StickLayout& layout);
at::Tensor empty_with_layout(c10::IntArrayRef sizes, const card::StickLayout& layout,
                             std::optional<at::ScalarType> dtype, std::optional<at::Device> device,
                             std::optional<bool> pin_memory,
                             std::optional<at::MemoryFormat> format);

}  // namespace spyre
