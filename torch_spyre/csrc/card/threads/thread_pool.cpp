// One launch at a time. What is left of it is a single word, the ticket: (launch, slices left).
//
// Claiming is a compare-and-swap on the ticket, so a worker that wakes up late, in the middle of a
// later launch, can only claim a slice that is really there; the other fields of a launch are read
// after a claim, and stay as they are until that slice is reported as done.
#include "threads/thread_pool.h"

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

#include "threads/spin.h"

namespace spyre::card {

namespace {

// Waking a thread that sleeps takes 15 us and more, and there are two launches in many steps of a
// graph: long enough to meet the next one, short enough not to be noticed by others.
constexpr std::chrono::microseconds kSpin{50};
// How long a launch that expects help does without workers, and how many slices it must have for
// each thread: it looks between them.
constexpr std::chrono::microseconds kPatience{30};
constexpr int kManySlices = 8;

thread_local bool expects_help = false;

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
  std::atomic<uint64_t> ticket{0};  // launch number << 32 | slices that are not claimed
  std::atomic<int> unfinished{0};   // slices neither done nor left out
  int slices = 0;
  const std::function<void(int)>* slice = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  std::atomic<int> news{0};     // changes with each launch and with `limit`; workers sleep on it
  std::atomic<int> helpers{0};  // threads in help()

  void launch(int count, const std::function<void(int)>& function);
  template <typename Between>
  int work(Between&& between);
  void report(int done);
  void fail(std::exception_ptr what);
  void wait_for_workers();
  void serve(int index);
  void adjust_workers(int useful);
  void wake(int wanted);
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
  const bool waits = expects_help && count >= kManySlices * threads.load();
  news.fetch_add(1, std::memory_order_acq_rel);
  bool told = !waits;
  if (told) wake(count - 1);
  const auto begin =
      waits ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point{};
  unfinished.fetch_sub(work([&] {
                         if (told || std::chrono::steady_clock::now() - begin < kPatience) return;
                         told = true;
                         wake(count - 1);
                       }),
                       std::memory_order_acq_rel);
  wait_for_workers();
}

// Claims and runs slices until none is left; returns how many.
template <typename Between>
int ThreadPool::State::work(Between&& between) {
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
    between();
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
  if (spin_until(finished, kSpin)) return;
  for (int left; (left = unfinished.load(std::memory_order_acquire)) != 0;) unfinished.wait(left);
}

// The life of a worker. It leaves the work to threads that help where there are enough of them.
void ThreadPool::State::serve(int index) {
  for (;;) {
    const int seen = news.load(std::memory_order_acquire);
    const int wanted = limit.load(std::memory_order_acquire);
    if (index >= wanted) return;
    const bool spare = index >= wanted - helpers.load(std::memory_order_relaxed);
    if (!spare) report(work([] {}));
    const auto has_news = [&] { return news.load(std::memory_order_acquire) != seen; };
    if (spare || !spin_until(has_news, kSpin)) news.wait(seen);
  }
}

void ThreadPool::State::report(int done) {
  if (done && unfinished.fetch_sub(done, std::memory_order_acq_rel) == done) {
    unfinished.notify_one();
  }
}

void ThreadPool::help(const std::function<bool()>& done) {
  State& s = *state_;
  const auto has_work = [&] { return (s.ticket.load(std::memory_order_acquire) & kLeftMask) != 0; };
  if (s.helpers.fetch_add(1, std::memory_order_relaxed) < s.threads - 1) {
    do {
      s.report(s.work([] {}));
    } while (spin_until([&] { return has_work() || done(); }, kSpin) && !done());
  }
  s.helpers.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadPool::expect_help() { expects_help = true; }

// Starts the workers that a launch can use, and ends those that are not wanted any more.
void ThreadPool::State::adjust_workers(int useful) {
  const int wanted = threads.load() - 1;
  const int now = static_cast<int>(workers.size());
  if (now > wanted) {
    limit = wanted;
    news.fetch_add(1, std::memory_order_acq_rel);
    news.notify_all();
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

// Sleeping workers, so that with those who help already there are `wanted`.
void ThreadPool::State::wake(int wanted) {
  const int missing = std::min(wanted, limit.load()) - helpers.load(std::memory_order_relaxed);
  if (missing >= limit) return news.notify_all();
  for (int i = 0; i < missing; i++) news.notify_one();
}

}  // namespace spyre::card
