// The random number generator: the CPU's mt19937, so that a seed gives the same numbers as on the
// CPU. Random kernels run on the host with a CPU generator that borrows this one's engine
// (eager/fallback.cpp), because CPU kernels accept no other.

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <vector>

#include "hooks/hooks.h"
#include "runtime.h"

namespace spyre {
namespace {

struct SpyreGenerator final : at::CPUGeneratorImpl {
  explicit SpyreGenerator(c10::DeviceIndex device) {
    device_ = c10::Device(kSpyre, device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  void set_offset(uint64_t) override { refuse_offset(); }
  uint64_t get_offset() const override { refuse_offset(); }

 private:
  [[noreturn]] static void refuse_offset() {
    C10_THROW_ERROR(
        NotImplementedError,
        "a spyre generator is a mt19937 and has no offset; use get_state and set_state");
  }
  SpyreGenerator* clone_impl() const override {
    auto* copy = new SpyreGenerator(device_.index());
    copy->set_state(*get_state());
    return copy;
  }
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<SpyreGenerator>(device < 0 ? current_device()
                                                       : check_device_index(device));
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* generators = [] {
    auto* all = new std::vector<at::Generator>();
    for (int i = 0; i < device_count(); i++) {
      all->push_back(at::make_generator<SpyreGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
    return all;
  }();
  return (*generators)[device < 0 ? current_device() : check_device_index(device)];
}

}  // namespace spyre
