// The process's side of the cards: settings from the environment, which cards there are, which one
// is current, when they start, and what happens after fork().
//
// Nothing here starts a card until card() or start() is called, so `import torch` stays free.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "card/card.h"

namespace spyre {

constexpr c10::DeviceType kSpyre = c10::DeviceType::PrivateUse1;

// What the environment says. Read once, on first need; a bad value throws and names what is
// allowed.
struct Settings {
  int device_count = 1;
  int default_device = 0;
  int cores = 32;
  size_t memory_bytes = 0;
  int threads = 0;  // 0: follow torch.get_num_threads()
  card::Numerics numerics = card::Numerics::DLFLOAT16;
  bool launch_blocking = false;
  bool sanitize = false;
  bool translate = true;
  bool pairs = false;  // of terms, in products; see docs/decisions/0048
  bool downcast_warning = true;
  bool fallback_warning = true;
  bool eager_on_card = true;
  int eager_limit = 0;  // signatures of one operation that a process compiles or loads
};
const Settings& settings();
Settings read_settings();  // once more from the environment; for tests of bad values

void set_hardware(const card::Hardware& hardware);
const card::Hardware& hardware();

c10::DeviceIndex device_count();           // throws on bad settings
c10::DeviceIndex device_count_noexcept();  // 0 then
c10::DeviceIndex current_device();
void set_device(int64_t index);  // validated
c10::DeviceIndex exchange_device(int64_t index);
void remember_device(int64_t index);                 // before the runtime runs: not validated yet
c10::DeviceIndex check_device_index(int64_t index);  // throws "Device index i out of range [0, n)"
c10::DeviceIndex resolve_device(const c10::Device& device);  // -1 means the current one

void start();
void stop();  // for free_runtime(): refuses while tensors live
bool is_started();
bool in_bad_fork();
void mark_bad_fork();

card::Card& get_card(c10::DeviceIndex index);  // starts the runtime
card::ThreadPool& thread_pool();
card::Numerics numerics();
bool adds_pairs();  // in large products
void set_adds_pairs(bool on);

// Queued work may drop the last reference to a Python-owned object, which takes the GIL: whoever
// waits for the card must not hold it.
class NoGil {
 public:
  NoGil();
  ~NoGil();
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  void* state_;
};

}  // namespace spyre
