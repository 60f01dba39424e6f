// The device guard: current card and stream, events. Events carry a mark in the queue; their times
// are modelled device time, never the host's clock.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "hooks/stream.h"
#include "runtime.h"

namespace spyre {
namespace {

struct Event {
  card::Mark mark;
  c10::DeviceIndex device = 0;
};

Event& as_event(void* event) {
  TORCH_CHECK(event != nullptr, "the event has not been recorded yet");
  return *static_cast<Event*>(event);
}

class SpyreGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType static_type = kSpyre;
  SpyreGuard() = default;
  explicit SpyreGuard(c10::DeviceType type) { TORCH_INTERNAL_ASSERT(type == kSpyre); }

  c10::DeviceType type() const override { return kSpyre; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(kSpyre, exchange_device(device.index()));
  }
  c10::Device getDevice() const override { return c10::Device(kSpyre, current_device()); }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count_noexcept()) set_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count_noexcept(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override;

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(resolve_device(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(resolve_device(device));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return stream_from_pool(resolve_device(device), high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(resolve_device(device), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool isStreamCapturing(const c10::Stream&) const override { return false; }
  bool queryStream(const c10::Stream& stream) const override {
    int id = check_stream(stream);
    return get_card(stream.device_index()).queue.stream_idle(id);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    int id = check_stream(stream);
    NoGil no_gil;
    get_card(stream.device_index()).queue.synchronize_stream(id);
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    NoGil no_gil;
    get_card(device < 0 ? current_device() : device).queue.synchronize();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    int id = check_stream(stream);
    if (*event == nullptr) *event = new Event{{}, stream.device_index()};
    auto& mine = as_event(*event);
    bool same_card =
        mine.device == stream.device_index() && (device < 0 || device == stream.device_index());
    TORCH_CHECK(same_card,
                "an event of spyre:", static_cast<int>(device < 0 ? mine.device : device),
                " cannot be recorded in a stream of ", stream.device());
    mine.mark = get_card(stream.device_index()).queue.record(id);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;  // never recorded: nothing to wait for, as on CUDA
    int id = check_stream(stream);
    NoGil no_gil;
    get_card(stream.device_index()).queue.wait(id, as_event(event).mark);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    auto& mine = as_event(event);
    return get_card(mine.device).queue.done(mine.mark);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    auto& mine = as_event(event);
    NoGil no_gil;
    get_card(mine.device).queue.synchronize(mine.mark);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(as_event(first).device == as_event(second).device,
                "elapsed_time needs two events of one card, got events of spyre:",
                static_cast<int>(as_event(first).device),
                " and spyre:", static_cast<int>(as_event(second).device));
    return (as_event(second).mark.device_us - as_event(first).mark.device_us) / 1000.0;
  }
};

// The documented element types, and the 32- and 64-bit integers that are stored as IEEE_INT32.
c10::DeviceCapability SpyreGuard::getDeviceCapability(c10::Device) const {
  c10::DeviceCapability capability;
  capability.capability_data.capability_bits = 0;
  auto& types = capability.capability_data.supported_scalar_types;
  types.has_Float = types.has_Half = types.has_BFloat16 = types.has_Bool = 1;
  types.has_Char = types.has_Byte = types.has_Short = types.has_Int = types.has_Long = 1;
  types.has_Float8_e4m3fn = types.has_Float8_e5m2fnuz = 1;
  return capability;
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, SpyreGuard);

}  // namespace
}  // namespace spyre
