// Device memory as PyTorch's allocator interface, on top of the card's caching allocator.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "card/memory/memory.h"

namespace spyre {

c10::DeviceAllocator* allocator();
c10::DataPtr allocate_on(c10::DeviceIndex device, size_t bytes);
// The block of a DataPtr of ours; null for an empty one.
card::Block* block_of(const c10::DataPtr& data);
// A DataPtr to a block that another owner keeps alive.
c10::DataPtr borrowed(const card::Block& block);
// A second DataPtr to the same memory that keeps `owner` alive.
c10::DataPtr alias_of(const c10::Storage& owner);

}  // namespace spyre
