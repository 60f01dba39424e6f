// One launch at a time. What is left of it is a single word, the ticket: (launch, slices left).
//
// Claiming is a compare-and-swap on the ticket, so a worker that wakes up late, in the middle of a
// later launch, can only claim a slice that is really there; the other fields of a launch are read
// after a claim, and stay as they are until that slice is reported as done.
#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace spyre::card {

namespace {

// Waking a thread that sleeps takes 15 us and more, and there are two launches in many steps of a
// graph: long enough to meet the next one, short enough not to be noticed by others.
constexpr std::chrono::microseconds kSpin{50};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as `ready` is, false when the spinning time is over.
template <typename Ready>
bool spin_until(Ready&& ready) {
  if (ready()) return true;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; i++) {
      relax();
      if (ready()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

constexpr uint64_t kLeftMask = 0xffff'ffff;

int checked_threads(int threads) {
  if (threads < 1) {
    throw std::invalid_argument("a thread pool needs at least 1 thread, not " +
                                std::to_string(threads));
  }
  return threads;
}

}  // namespace

struct ThreadPool::State {
  explicit State(int threads) : threads(checked_threads(threads)) {}

  std::atomic<int> threads;          // wanted, the caller included
  std::atomic<bool> taken{false};    // a launch is under way; its caller owns `workers`
  std::vector<std::thread> workers;  // worker i is wanted while i < limit
  std::atomic<int> limit{0};

  // The launch
  std::atomic<uint64_t> ticket{0};  // launch number << 32 | slices that nobody has claimed
  std::atomic<int> unfinished{0};   // slices neither done nor left out
  int slices = 0;
  const std::function<void(int)>* slice = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  std::atomic<int> news{0};  // changes with each launch and with `limit`; workers sleep on it

  void launch(int count, const std::function<void(int)>& function);
  int work();
  void fail(std::exception_ptr what);
  void wait_for_workers();
  void serve(int index);
  void adjust_workers(int useful);
  void announce(int helpers);
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>(threads)) {}

ThreadPool::~ThreadPool() {
  state_->threads = 1;
  state_->adjust_workers(0);
}

int ThreadPool::threads() const { return state_->threads; }

void ThreadPool::resize(int threads) { state_->threads = checked_threads(threads); }

void ThreadPool::run(int slices, const std::function<void(int)>& slice) {
  State& s = *state_;
  const bool alone = slices <= 1 || (s.threads == 1 && s.limit == 0);
  if (alone || s.taken.exchange(true, std::memory_order_acquire)) {
    for (int i = 0; i < slices; i++) slice(i);
    return;
  }
  s.launch(slices, slice);  // does not throw
  std::exception_ptr error = std::exchange(s.error, nullptr);
  s.taken.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(std::move(error));
}

void ThreadPool::State::launch(int count, const std::function<void(int)>& function) {
  adjust_workers(count - 1);
  slices = count;
  slice = &function;
  unfinished.store(count, std::memory_order_relaxed);
  const uint64_t number = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
  ticket.store(number << 32 | static_cast<uint64_t>(count), std::memory_order_release);
  announce(count - 1);
  unfinished.fetch_sub(work(), std::memory_order_acq_rel);
  wait_for_workers();
}

// Claims and runs slices until none is left; returns how many.
int ThreadPool::State::work() {
  int done = 0;
  uint64_t now = ticket.load(std::memory_order_acquire);
  while (now & kLeftMask) {
    if (!ticket.compare_exchange_weak(now, now - 1, std::memory_order_acq_rel)) continue;
    try {
      (*slice)(slices - static_cast<int>(now & kLeftMask));
    } catch (...) {
      fail(std::current_exception());
    }
    done++;
    now = ticket.load(std::memory_order_acquire);
    // A worker must not go on with the next launch before it has reported this one, and cannot:
    // this one is not over before the report.
  }
  return done;
}

// Keeps the first error and takes the unclaimed slices away.
void ThreadPool::State::fail(std::exception_ptr what) {
  {
    std::lock_guard lock(error_mutex);
    if (!error) error = std::move(what);
  }
  const auto left = static_cast<int>(ticket.fetch_and(~kLeftMask) & kLeftMask);
  unfinished.fetch_sub(left, std::memory_order_acq_rel);
}

void ThreadPool::State::wait_for_workers() {
  const auto finished = [&] { return unfinished.load(std::memory_order_acquire) == 0; };
  if (spin_until(finished)) return;
  for (int left; (left = unfinished.load(std::memory_order_acquire)) != 0;) unfinished.wait(left);
}

// The life of a worker.
void ThreadPool::State::serve(int index) {
  for (;;) {
    const int seen = news.load(std::memory_order_acquire);
    if (index >= limit.load(std::memory_order_acquire)) return;
    const int done = work();
    if (done && unfinished.fetch_sub(done, std::memory_order_acq_rel) == done) {
      unfinished.notify_one();
    }
    if (!spin_until([&] { return news.load(std::memory_order_acquire) != seen; })) news.wait(seen);
  }
}

// Starts the workers that a launch can use, and ends those that are not wanted any more.
void ThreadPool::State::adjust_workers(int useful) {
  const int wanted = threads.load() - 1;
  const int now = static_cast<int>(workers.size());
  if (now > wanted) {
    limit = wanted;
    announce(now);
    for (int i = wanted; i < now; i++) workers[i].join();
    workers.resize(wanted);
  }
  for (int i = now; i < std::min(wanted, useful); i++) {
    limit = i + 1;
    try {
      workers.emplace_back([this, i] { serve(i); });
    } catch (const std::exception&) {
      limit = i;  // the host gives no more threads: fewer do the same work
      return;
    }
  }
}

void ThreadPool::State::announce(int helpers) {
  news.fetch_add(1, std::memory_order_acq_rel);
  if (helpers >= limit) return news.notify_all();
  for (int i = 0; i < helpers; i++) news.notify_one();
}

}  // namespace spyre::card
