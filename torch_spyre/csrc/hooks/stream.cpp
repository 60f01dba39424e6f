#include "hooks/stream.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>

namespace spyre {
namespace {

constexpr int kPool = 32;
constexpr int kMaxCards = 8;

thread_local std::array<int, kMaxCards> t_current{};
std::array<std::array<std::atomic<unsigned>, 2>, kMaxCards> g_next{};

c10::Stream make(c10::DeviceIndex device, int id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSpyre, device), id);
}

}  // namespace

int current_stream_id(c10::DeviceIndex device) { return t_current[device]; }
c10::Stream current_stream(c10::DeviceIndex device) {
  return make(check_device_index(device), t_current[device]);
}
c10::Stream default_stream(c10::DeviceIndex device) { return make(check_device_index(device), 0); }

int check_stream(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == kSpyre, "expected a stream of a spyre device, got one of ",
              stream.device());
  check_device_index(stream.device_index());
  TORCH_CHECK(stream.id() >= 0 && stream.id() < card::kStreamsPerCard, "stream id ", stream.id(),
              " out of range [0, ", card::kStreamsPerCard, ")");
  return static_cast<int>(stream.id());
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  int id = check_stream(stream);
  auto device = stream.device_index();
  auto previous = make(device, t_current[device]);
  t_current[device] = id;
  return previous;
}

c10::Stream stream_from_pool(c10::DeviceIndex device, int priority) {
  check_device_index(device);
  int high = priority != 0 ? 1 : 0;
  unsigned n = g_next[device][high].fetch_add(1) % kPool;
  return make(device, 1 + high * kPool + static_cast<int>(n));
}

int stream_priority(c10::StreamId id) { return id > kPool ? -1 : 0; }

}  // namespace spyre
