#include "runtime.h"

#include <ATen/Parallel.h>
#include <Python.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "card/sanitizer/sanitizer.h"
#include "eager/eager.h"
#include "eager/late_fallbacks.h"
#include "launch/job_plan.h"

namespace spyre {
namespace {

card::Hardware g_hardware;
std::mutex g_mutex;
std::atomic<bool> g_started{false};
std::atomic<bool> g_bad_fork{false};
// Cards are never destroyed at exit: tensors of other static objects may outlive any order we
// choose.
std::vector<std::unique_ptr<card::Card>>* g_cards = new std::vector<std::unique_ptr<card::Card>>();
thread_local int t_device = -1;

int default_device() { return device_count_noexcept() > 0 ? settings().default_device : 0; }

void after_fork_in_child() {
  if (g_started.load()) g_bad_fork = true;
}

[[noreturn]] void refuse_bad_fork() {
  C10_THROW_ERROR(
      Error,
      "Cannot use spyre in a forked child: the parent had already started the card's runtime. "
      "Use the 'spawn' start method of multiprocessing, or fork before the first use of the "
      "device.");
}

}  // namespace

void set_hardware(const card::Hardware& hardware) { g_hardware = hardware; }
const card::Hardware& hardware() { return g_hardware; }

c10::DeviceIndex device_count() { return static_cast<c10::DeviceIndex>(settings().device_count); }

c10::DeviceIndex device_count_noexcept() {
  try {
    return device_count();
  } catch (const c10::Error&) {  // reported by whatever uses the device first
    return 0;
  }
}

c10::DeviceIndex current_device() {
  if (t_device < 0) t_device = default_device();
  return static_cast<c10::DeviceIndex>(t_device);
}

c10::DeviceIndex check_device_index(int64_t index) {
  int count = device_count();
  TORCH_CHECK(index >= 0 && index < count, "Device index ", index, " out of range [0, ", count,
              "); AIU_WORLD_SIZE sets the number of emulated cards");
  return static_cast<c10::DeviceIndex>(index);
}

c10::DeviceIndex resolve_device(const c10::Device& device) {
  TORCH_CHECK(device.type() == kSpyre, "expected a spyre device, got ", device);
  return device.has_index() ? check_device_index(device.index()) : current_device();
}

void set_device(int64_t index) { t_device = check_device_index(index); }

void remember_device(int64_t index) {
  if (is_started()) return set_device(index);
  TORCH_CHECK(index >= 0 && index < 128, "Device index ", index, " out of range [0, ",
              device_count(), ")");
  t_device = static_cast<int>(index);
}

c10::DeviceIndex exchange_device(int64_t index) {
  auto previous = current_device();
  if (index >= 0) set_device(index);
  return previous;
}

bool is_started() { return g_started.load(std::memory_order_acquire); }
bool in_bad_fork() { return g_bad_fork.load(std::memory_order_relaxed); }
void mark_bad_fork() { g_bad_fork = true; }

void start() {
  if (in_bad_fork()) refuse_bad_fork();
  register_late_fallbacks();  // takes the dispatcher's lock: not under ours
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_started) return;
  const Settings& s = settings();
  TORCH_CHECK(s.device_count > 0,
              "no spyre device: SPYRE_DEVICES names no card of this host (0 to 7)");
  TORCH_CHECK(s.default_device < s.device_count,
              "Device index out of bounds: LOCAL_RANK=", s.default_device, " but there are ",
              s.device_count, " cards; set AIU_WORLD_SIZE to the number of ranks on this host");
  TORCH_CHECK(current_device() < s.device_count, "Device index ",
              static_cast<int>(current_device()), " out of range [0, ", s.device_count, ")");
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, &after_fork_in_child); });
  for (int i = 0; i < s.device_count; i++) {
    g_cards->push_back(std::make_unique<card::Card>(i, hardware(), s.memory_bytes));
    auto* card = g_cards->back().get();
    card->queue.set_blocking(s.launch_blocking);
    if (s.sanitize) card->sanitizer->enable();
    card->memory.set_reclaim([card] {
      NoGil no_gil;  // a queued callback may need it
      card->queue.drain();
    });
  }
  g_started.store(true, std::memory_order_release);
}

void stop() {
  NoGil no_gil;  // queued callbacks may need it
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!g_started || in_bad_fork()) return;
  clear_kernel_cache();
  clear_eager_programs();
  for (auto& card : *g_cards) {
    card->queue.synchronize();
    auto live = card->memory.stats().allocation.current;
    TORCH_CHECK(live == 0, "cannot free the runtime: ", live,
                " allocations are alive on spyre:", card->index, "; delete the tensors first");
  }
  g_started = false;
  g_cards->clear();
}

card::Card& get_card(c10::DeviceIndex index) {
  if (C10_UNLIKELY(in_bad_fork())) refuse_bad_fork();
  if (C10_UNLIKELY(!is_started())) start();
  return *(*g_cards)[check_device_index(index)];
}

card::ThreadPool& thread_pool() {
  static card::ThreadPool* pool = new card::ThreadPool(1);
  int wanted = settings().threads > 0 ? settings().threads : at::get_num_threads();
  if (pool->threads() != wanted) pool->resize(wanted);
  return *pool;
}

card::Numerics numerics() { return settings().numerics; }

namespace {
std::atomic<int> pairs_set{-1};  // below zero: as the environment says
}
bool adds_pairs() {
  const int value = pairs_set.load(std::memory_order_relaxed);
  return value < 0 ? settings().pairs : value != 0;
}
void set_adds_pairs(bool on) { pairs_set.store(on, std::memory_order_relaxed); }

NoGil::NoGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
NoGil::~NoGil() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

}  // namespace spyre
