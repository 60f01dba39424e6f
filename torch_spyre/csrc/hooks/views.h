// Views that name a layout, and changing a tensor's layout.
#pragma once

#include <ATen/core/Tensor.h>

#include "card/memory/layout.h"

namespace spyre {

// With the storage's own layout: a plain view. With another one: the same device bytes, read in it.
at::Tensor as_strided_with_layout(const at::Tensor& self, c10::IntArrayRef sizes,
                                  c10::IntArrayRef strides, std::optional<int64_t> offset,
                                  const card::StickLayout& layout);
at::Tensor reinterpret_tensor(const at::Tensor& self, c10::IntArrayRef sizes,
                              c10::IntArrayRef strides, int64_t offset_increment);
// The layout of the tensor's storage; nullopt when it is carried untiled.
std::optional<card::StickLayout> get_layout(const at::Tensor& self);
// Moves the tensor to another layout; its values stay.
void set_layout(const at::Tensor& self, const card::StickLayout& layout);

}  // namespace spyre
