#include "hooks/hooks.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <shared_mutex>

#include "card/memory/memory.h"
#include "hooks/storage.h"
#include "runtime.h"

namespace spyre {
namespace {

// Pinned memory: page aligned, locked when the system's limit allows it, and remembered, because
// only a copy from or to it may go on while the host does.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    void* pointer = nullptr;
    int error = posix_memalign(&pointer, static_cast<size_t>(sysconf(_SC_PAGESIZE)), bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, error == 0, "cannot allocate ", bytes,
                     " bytes of pinned host memory");
    (void)mlock(pointer, bytes);  // a hint here: pages that may be swapped are still correct
    std::unique_lock lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(pointer)] = bytes;
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(bytes);
    return {pointer, pointer, &PinnedAllocator::release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }  // queued copies hold the tensor
  void empty_cache() override {}
  at::HostStats get_stats() override {
    std::shared_lock lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::unique_lock lock(mutex_);
    stats_.allocations.reset_accumulated();
    stats_.allocated_bytes.reset_accumulated();
  }
  void reset_peak_stats() override {
    std::unique_lock lock(mutex_);
    stats_.allocations.reset_peak();
    stats_.allocated_bytes.reset_peak();
  }

  bool owns(const void* pointer) {
    auto address = reinterpret_cast<uintptr_t>(pointer);
    std::shared_lock lock(mutex_);
    auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return false;
    auto range = std::prev(next);
    return address < range->first + range->second;
  }

 private:
  static void release(void* pointer);
  void forget(void* pointer) {
    std::unique_lock lock(mutex_);
    auto range = ranges_.find(reinterpret_cast<uintptr_t>(pointer));
    munlock(pointer, range->second);
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(range->second);
    ranges_.erase(range);
  }

  std::shared_mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
  at::HostStats stats_;
};

PinnedAllocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator();
  return *allocator;
}

void PinnedAllocator::release(void* pointer) {
  if (pointer == nullptr) return;
  pinned_allocator().forget(pointer);
  std::free(pointer);
}

class SpyreHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count_noexcept() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_started() && !in_bad_fork(); }
  void init() const override { start(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned_pointer(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Device getDeviceFromPtr(void* pointer) const override {
    int card = card::card_of(reinterpret_cast<card::Address>(pointer));
    TORCH_CHECK(card >= 0, "the pointer is not an address of a spyre card");
    return at::Device(kSpyre, static_cast<c10::DeviceIndex>(card));
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto& impl = *spyre_storage(storage);
    if (bytes == impl.nbytes()) return;
    // resize_(0) and back, as FSDP does, keeps the tiling: the size says which tensor comes back.
    TilingPtr tiling = bytes == 0 || (impl.nbytes() == 0 && tiled_bytes(impl.tiling) == bytes)
                           ? impl.tiling
                           : nullptr;
    reshape_storage(impl, bytes, tiling);
  }

 private:
  static size_t tiled_bytes(const TilingPtr& tiling) {
    if (!tiling) return 0;
    size_t extent = 1;
    const auto& placement = tiling->placement;
    for (size_t d = 0; d < placement.sizes.size(); d++) {
      if (placement.sizes[d] == 0) return 0;
      extent += (placement.sizes[d] - 1) * placement.strides[d];
    }
    return extent * c10::elementSize(tiling->dtype);
  }
};

struct RegisterHooks {
  RegisterHooks() {
    at::RegisterPrivateUse1HooksInterface(new SpyreHooks());
    at::setHostAllocator(kSpyre, &pinned_allocator());
  }
} g_register_hooks;

}  // namespace

bool is_pinned_pointer(const void* pointer) {
  return pointer != nullptr && pinned_allocator().owns(pointer);
}

}  // namespace spyre
