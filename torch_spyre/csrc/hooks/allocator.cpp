#include "hooks/allocator.h"

#include <c10/core/Storage.h>

#include "runtime.h"

namespace spyre {
namespace {

struct Alias {
  card::Block* block;
  c10::Storage owner;
};

void report(card::Block* block, int64_t change, card::Memory& memory) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  auto stats = memory.stats();
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(block->address), change,
                                   stats.allocated_bytes.current, stats.reserved_bytes.current,
                                   c10::Device(kSpyre, static_cast<c10::DeviceIndex>(block->card)));
}

void delete_block(void* context) {
  if (context == nullptr || in_bad_fork()) return;  // the parent's memory is not ours to give back
  auto* block = static_cast<card::Block*>(context);
  auto& memory = get_card(static_cast<c10::DeviceIndex>(block->card)).memory;
  auto size = static_cast<int64_t>(block->size);
  report(block, -size, memory);
  block->note.reset();
  block->limits = {};
  memory.free(block);
}

void delete_alias(void* context) { delete static_cast<Alias*>(context); }

c10::CachingAllocator::Stat to_stat(const card::Stat& stat) {
  c10::CachingAllocator::Stat result;
  result.current = stat.current;
  result.peak = stat.peak;
  result.allocated = stat.allocated;
  result.freed = stat.freed;
  return result;
}

constexpr size_t kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

class SpyreAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return allocate_on(current_device(), bytes); }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "spyre memory is not addressable by the host; copy tensors instead");
  }
  bool initialized() override { return is_started() && !in_bad_fork(); }
  void emptyCache(c10::MempoolId_t) override {
    if (!initialized()) return;
    for (int i = 0; i < device_count(); i++)
      get_card(static_cast<c10::DeviceIndex>(i)).memory.empty_cache();
  }
  // Queued work holds its blocks until it is done: there is nothing to remember.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    auto stats = get_card(device).memory.stats();
    c10::CachingDeviceAllocator::DeviceStats result;
    result.allocation[kAggregate] = to_stat(stats.allocation);
    result.allocated_bytes[kAggregate] = to_stat(stats.allocated_bytes);
    result.requested_bytes[kAggregate] = to_stat(stats.requested_bytes);
    result.reserved_bytes[kAggregate] = to_stat(stats.reserved_bytes);
    result.active_bytes[kAggregate] = to_stat(stats.active_bytes);
    result.num_alloc_retries = stats.num_alloc_retries;
    result.num_ooms = stats.num_ooms;
    return result;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    get_card(device).memory.reset_accumulated_stats();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    get_card(device).memory.reset_peak_stats();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    auto& memory = get_card(device).memory;
    return {memory.free_bytes(), memory.capacity()};
  }
};

SpyreAllocator g_allocator;
REGISTER_ALLOCATOR(kSpyre, &g_allocator);

}  // namespace

c10::DeviceAllocator* allocator() { return &g_allocator; }

c10::DataPtr allocate_on(c10::DeviceIndex device, size_t bytes) {
  auto& memory = get_card(device).memory;
  c10::Device where(kSpyre, device);
  if (bytes == 0) return {nullptr, where};
  card::Block* block = nullptr;
  try {
    block = memory.allocate(bytes);
  } catch (const card::OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  }
  report(block, static_cast<int64_t>(block->size), memory);
  return {reinterpret_cast<void*>(block->address), block, &delete_block, where};
}

card::Block* block_of(const c10::DataPtr& data) {
  void* context = data.get_context();
  if (context == nullptr) return nullptr;
  if (data.get_deleter() == &delete_alias) return static_cast<Alias*>(context)->block;
  TORCH_INTERNAL_ASSERT(data.get_deleter() == &delete_block,
                        "memory that the spyre allocator did not make");
  return static_cast<card::Block*>(context);
}

c10::DataPtr borrowed(const card::Block& block) {
  auto* alias = new Alias{const_cast<card::Block*>(&block), c10::Storage()};
  c10::Device where(kSpyre, static_cast<c10::DeviceIndex>(block.card));
  return {reinterpret_cast<void*>(block.address), alias, &delete_alias, where};
}

c10::DataPtr alias_of(const c10::Storage& owner) {
  auto* block = block_of(owner.data_ptr());
  if (block == nullptr) return {nullptr, owner.device()};
  return {const_cast<void*>(owner.data()), new Alias{block, owner}, &delete_alias, owner.device()};
}

}  // namespace spyre
