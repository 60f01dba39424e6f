// Copies between tensors of the card that change the type, as programs.
#pragma once

#include <ATen/core/Tensor.h>

namespace spyre {

// dst <- src. False when the card has no program for it; the host then does it.
bool cast_on_card(const at::Tensor& src, const at::Tensor& dst);

}  // namespace spyre
