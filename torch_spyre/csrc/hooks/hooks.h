// Pinned host memory and the default generators, as PyTorch's accelerator hooks need them.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace spyre {

bool is_pinned_pointer(const void* pointer);

const at::Generator& default_generator(c10::DeviceIndex device);  // -1: of the current card
at::Generator new_generator(c10::DeviceIndex device);

}  // namespace spyre
