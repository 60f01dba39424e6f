// One list of jobs per card. Whoever holds `executing` runs the job at its head: the executor
// thread, a thread that waits for the card, or a caller of run() that found the card idle.
//
// Progress: while jobs are queued, some thread is executing or has been told to look. Whoever stops
// executing with jobs left hands over, under the mutex: to the executor when there is one;
// otherwise all queued jobs come from run(), whose callers wait, and one of them is woken.
//
// Waking a thread costs the one that wakes it 12 us and takes 30. So the executor stays awake where
// the last pause between jobs was a short one, and a thread that comes to wait for a job helps with
// it.
#include "queue/queue.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "threads/spin.h"

namespace spyre::card {

namespace {

using Clock = std::chrono::steady_clock;

// The executor sleeps at once after a longer one: threads of the host may want the processor. To
// let them go first is no way, since those of OpenMP spin, too.
constexpr std::chrono::microseconds kLongestPause{250};

// The jobs that this thread is in the middle of, innermost first. A job of one card may run a job
// of another card on the same thread.
struct Frame {
  const QueueState* queue;
  Frame* outer;
};
thread_local Frame* innermost = nullptr;

bool inside_job_of(const QueueState* queue) {
  for (const Frame* frame = innermost; frame; frame = frame->outer) {
    if (frame->queue == queue) return true;
  }
  return false;
}

std::string describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "unknown exception";
  }
}

bool is_kept(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const KeptError&) {
    return true;
  } catch (...) {
    return false;
  }
}

int checked_stream(int stream) {
  if (stream < 0 || stream >= kStreamsPerCard) {
    throw std::out_of_range("stream " + std::to_string(stream) +
                            " does not exist: a card has streams 0..64");
  }
  return stream;
}

void check_job(const Job& job) {
  checked_stream(job.stream);
  if (!(job.device_us >= 0) || std::isinf(job.device_us)) {
    throw std::invalid_argument(job.name + ": a job takes 0 us or more, not " +
                                std::to_string(job.device_us));
  }
}

struct Item {
  Job job;
  uint64_t sequence;
  // Where run() wants the error, on its stack. nullptr: submitted, the error stays pending.
  std::exception_ptr* failure;
};

struct Waiter {
  uint64_t target;
  bool helps;  // executes jobs when no other thread does
  std::condition_variable wake;
};

using Lock = std::unique_lock<std::mutex>;

}  // namespace

struct QueueState {
  QueueState(int card, Memory& memory) : card(card), memory(memory) {}

  const int card;
  Memory& memory;
  std::atomic<bool> blocking{false};
  // All jobs up to here are done. Changed under the mutex, read anywhere.
  std::atomic<uint64_t> completed{0};

  std::mutex mutex;  // guards everything below
  std::deque<Item> jobs;
  uint64_t submitted = 0;
  bool executing = false;
  bool stopping = false;
  bool called = false;                // the executor shall wake up for the next job
  bool awake = false;                 // the executor looks at `arrivals` and need not be told
  std::atomic<uint64_t> arrivals{0};  // changes with each queued job, and when it shall stop
  Clock::time_point idle_since{};
  Clock::duration last_pause = kLongestPause;
  ThreadPool* pool = nullptr;  // of the job that is being executed
  std::thread executor;
  std::condition_variable work;  // the executor sleeps on it
  std::vector<Waiter*> waiters;

  std::array<uint64_t, kStreamsPerCard> last{};  // sequence of the stream's last job
  std::array<double, kStreamsPerCard> stream_us{};
  std::array<double, static_cast<size_t>(Engine::NONE)> engine_us{};
  // The latest time that the host has waited for: nothing it submits now can have begun earlier.
  double host_us = 0;
  double busy_us = 0;

  std::string error;        // the first that was not reported
  std::exception_ptr kept;  // that one itself, if it is a KeptError
  uint64_t errors = 0;

  // Submitting
  uint64_t submit(Job job);
  uint64_t run(Job job);
  Item enter(Job job, std::exception_ptr* failure);
  void account(const Job& job, uint64_t sequence);
  void start_executor();

  // Executing
  void serve();
  bool stays_awake(Lock& lock);
  void execute_next(Lock& lock);
  void execute(Lock& lock, Item item);
  void hand_over();

  // Waiting
  void check_may_wait(const char* what) const;
  void wait_until(Lock& lock, uint64_t sequence, bool help);
  std::exception_ptr take_error();
  void throw_pending();
  void finish();
};

// ---- Submitting -------------------------------------------------------------------------------

Queue::Queue(int card, Memory& memory) : state_(std::make_shared<QueueState>(card, memory)) {}

uint64_t Queue::submit(Job job) { return state_->submit(std::move(job)); }

void Queue::run(Job job) { state_->run(std::move(job)); }

uint64_t QueueState::submit(Job job) {
  check_job(job);
  if (blocking && !inside_job_of(this)) return run(std::move(job));
  Lock lock(mutex);
  if (job.small && jobs.empty() && !executing && !inside_job_of(this)) {
    Item item = enter(std::move(job), nullptr);
    const uint64_t sequence = item.sequence;
    execute(lock, std::move(item));
    hand_over();
    return sequence;
  }
  start_executor();
  if (jobs.empty() && !executing) last_pause = Clock::now() - idle_since;
  jobs.push_back(enter(std::move(job), nullptr));
  const uint64_t sequence = submitted;
  arrivals.fetch_add(1, std::memory_order_release);
  const bool asleep = !executing && !awake;  // else whoever executes goes on with it, or hands over
  lock.unlock();
  if (asleep) work.notify_one();
  return sequence;
}

uint64_t QueueState::run(Job job) {
  check_job(job);
  check_may_wait(job.name.c_str());
  std::exception_ptr failure;
  Lock lock(mutex);
  Item item = enter(std::move(job), &failure);
  const uint64_t sequence = item.sequence;
  host_us = std::max(host_us, stream_us[item.job.stream]);
  if (jobs.empty() && !executing) {
    execute(lock, std::move(item));
    hand_over();
  } else {
    jobs.push_back(std::move(item));
    wait_until(lock, sequence, /*help=*/true);
  }
  lock.unlock();
  if (failure) std::rethrow_exception(std::move(failure));
  return sequence;
}

Item QueueState::enter(Job job, std::exception_ptr* failure) {
  for (Block* block : job.uses) memory.retain(block);
  account(job, ++submitted);
  return {std::move(job), submitted, failure};
}

void QueueState::account(const Job& job, uint64_t sequence) {
  last[job.stream] = sequence;
  double& stream_clock = stream_us[job.stream];
  stream_clock = std::max(stream_clock, host_us);
  if (job.engine == Engine::NONE) {
    stream_clock += job.device_us;
  } else {
    double& engine_clock = engine_us[static_cast<size_t>(job.engine)];
    stream_clock = engine_clock = std::max(stream_clock, engine_clock) + job.device_us;
  }
  busy_us += job.device_us;
}

void QueueState::start_executor() {
  if (!executor.joinable()) executor = std::thread([this] { serve(); });
}

// ---- Executing --------------------------------------------------------------------------------

void QueueState::serve() {
  ThreadPool::expect_help();
  Lock lock(mutex);
  for (;;) {
    work.wait(lock, [&] { return (!executing && !jobs.empty()) || called || stopping; });
    called = false;
    do {
      if (stopping) return;  // which begins when all work is done
      while (!jobs.empty() && !executing) execute_next(lock);
    } while (stays_awake(lock));
  }
}

// Whether a job has arrived, or the end has come, in a short time without the mutex.
bool QueueState::stays_awake(Lock& lock) {
  if (last_pause >= kLongestPause) return false;
  const auto time = 2 * std::chrono::duration_cast<std::chrono::microseconds>(last_pause);
  const uint64_t before = arrivals.load(std::memory_order_relaxed);
  awake = true;
  lock.unlock();
  const bool news =
      spin_until([&] { return arrivals.load(std::memory_order_acquire) != before; }, time);
  lock.lock();
  awake = false;
  return news;
}

void QueueState::execute_next(Lock& lock) {
  Item item = std::move(jobs.front());
  jobs.pop_front();
  execute(lock, std::move(item));
}

// Runs a job without the mutex, which is held before and after.
void QueueState::execute(Lock& lock, Item item) {
  executing = true;
  pool = item.job.pool;
  std::exception_ptr failure;
  if (item.failure && errors) failure = take_error();
  lock.unlock();

  Frame frame{this, innermost};
  innermost = &frame;
  try {
    if (!failure && item.job.run) item.job.run();
  } catch (...) {
    failure = std::current_exception();
  }
  item.job.run = nullptr;
  innermost = frame.outer;
  for (Block* block : item.job.uses) memory.release(block);
  std::string text;
  if (failure && !item.failure) text = item.job.name + ": " + describe(failure);

  lock.lock();
  executing = false;
  idle_since = Clock::now();
  if (item.failure) {
    *item.failure = std::move(failure);
  } else if (failure && errors++ == 0) {
    error = std::move(text);
    if (is_kept(failure)) kept = std::move(failure);
  }
  completed.store(item.sequence, std::memory_order_release);
  for (Waiter* waiter : waiters) {
    if (waiter->target <= item.sequence) waiter->wake.notify_one();
  }
}

void QueueState::hand_over() {
  if (jobs.empty() || executing) return;
  arrivals.fetch_add(1, std::memory_order_release);
  if (awake) return;
  if (executor.joinable()) return work.notify_one();
  for (Waiter* waiter : waiters) {
    if (waiter->helps && waiter->target > completed) return waiter->wake.notify_one();
  }
}

// ---- Waiting ----------------------------------------------------------------------------------

void QueueState::check_may_wait(const char* what) const {
  if (inside_job_of(this)) {
    throw std::logic_error(std::string(what) + ": a job or callback of Spyre card " +
                           std::to_string(card) +
                           " waits for its own card, which would never end;"
                           " submit the work instead, or wait outside the callback");
  }
}

// A helping thread executes queued jobs up to the one it waits for instead of sleeping, or works on
// the one that is being executed.
void QueueState::wait_until(Lock& lock, uint64_t sequence, bool help) {
  bool helped = false;
  if (completed < sequence) {
    Waiter self{sequence, help, {}};
    waiters.push_back(&self);
    uint64_t tried = UINT64_MAX;  // to work on the job after this one
    while (completed < sequence) {
      if (help && !executing && !jobs.empty()) {
        execute_next(lock);
        helped = true;
      } else if (help && executing && pool != nullptr && tried != completed) {
        const uint64_t before = tried = completed;
        ThreadPool& with = *pool;
        lock.unlock();
        with.help([&] { return completed.load(std::memory_order_acquire) != before; });
        lock.lock();
      } else {
        self.wake.wait(lock);
      }
    }
    std::erase(waiters, &self);
  }
  if (!helped) return;
  hand_over();
  // This thread was quicker than the executor, which sleeps. With the next job it will not.
  if (jobs.empty() && last_pause < kLongestPause && executor.joinable() && !awake) {
    called = true;
    work.notify_one();
  }
}

std::exception_ptr QueueState::take_error() {
  const uint64_t others = std::exchange(errors, 0) - 1;
  std::string text = std::exchange(error, {});
  if (kept) return std::exchange(kept, nullptr);
  if (others) {
    text +=
        " (and " + std::to_string(others) + (others == 1 ? " job" : " jobs") + " failed after it)";
  }
  return std::make_exception_ptr(JobError(text));
}

void QueueState::throw_pending() {
  if (errors) std::rethrow_exception(take_error());
}

void QueueState::finish() {
  Lock lock(mutex);
  while (completed < submitted) wait_until(lock, submitted, /*help=*/true);  // jobs may submit jobs
  stopping = true;
  arrivals.fetch_add(1, std::memory_order_release);
  lock.unlock();
  work.notify_one();
  if (executor.joinable()) executor.join();
}

Queue::~Queue() { state_->finish(); }

namespace {

// The queue that a mark belongs to; nullptr for one that was never recorded.
QueueState* queue_of(const Mark& mark, QueueState* own) {
  if (mark.card < 0) return nullptr;
  if (mark.queue) return mark.queue.get();
  if (mark.card == own->card) return own;
  throw std::invalid_argument("a mark of card " + std::to_string(mark.card) +
                              " does not come from Queue::record");
}

}  // namespace

void Queue::synchronize(const Mark& mark) {
  QueueState* queue = queue_of(mark, state_.get());
  if (!queue) return;
  queue->check_may_wait("synchronize");
  Lock lock(queue->mutex);
  queue->host_us = std::max(queue->host_us, mark.device_us);
  queue->wait_until(lock, mark.sequence, /*help=*/true);
  queue->throw_pending();
}

void Queue::synchronize_stream(int stream) { synchronize(record(stream)); }

void Queue::synchronize() {
  state_->check_may_wait("synchronize");
  Lock lock(state_->mutex);
  for (double clock : state_->stream_us) state_->host_us = std::max(state_->host_us, clock);
  state_->wait_until(lock, state_->submitted, /*help=*/true);
  state_->throw_pending();
}

bool Queue::drain() {
  if (inside_job_of(state_.get())) return false;
  Lock lock(state_->mutex);
  state_->wait_until(lock, state_->submitted, /*help=*/true);
  return true;
}

// ---- Streams and marks ------------------------------------------------------------------------

Mark Queue::record(int stream) {
  checked_stream(stream);
  Lock lock(state_->mutex);
  double& clock = state_->stream_us[stream];
  clock = std::max(clock, state_->host_us);
  return {state_->card, stream, state_->last[stream], clock, state_};
}

// Jobs of one card are executed in order, so only marks of other cards need to be waited for. Such
// waits cannot form a circle: a mark is older than any job that waits for it.
void Queue::wait(int stream, const Mark& mark) {
  checked_stream(stream);
  QueueState* other = queue_of(mark, state_.get());
  {
    Lock lock(state_->mutex);
    double& clock = state_->stream_us[stream];
    clock = std::max(clock, mark.device_us);
  }
  if (!other || other == state_.get() || other->completed >= mark.sequence) return;
  submit({.name = "wait for card " + std::to_string(mark.card),
          .stream = stream,
          .engine = Engine::NONE,
          .run =
              [mark] {
                Lock lock(mark.queue->mutex);
                mark.queue->wait_until(lock, mark.sequence, /*help=*/false);
              },
          .uses = {}});
}

void Queue::callback(int stream, std::function<void()> host_function) {
  submit({.name = "host callback",
          .stream = stream,
          .engine = Engine::NONE,
          .run = std::move(host_function),
          .uses = {}});
}

bool Queue::done(const Mark& mark) const {
  const QueueState* queue = queue_of(mark, state_.get());
  return !queue || queue->completed.load(std::memory_order_acquire) >= mark.sequence;
}

bool Queue::stream_idle(int stream) const {
  checked_stream(stream);
  Lock lock(state_->mutex);
  return state_->completed >= state_->last[stream];
}

double Queue::stream_time_us(int stream) const {
  checked_stream(stream);
  Lock lock(state_->mutex);
  return state_->stream_us[stream];
}

double Queue::busy_us() const {
  Lock lock(state_->mutex);
  return state_->busy_us;
}

uint64_t Queue::jobs_done() const { return state_->completed.load(std::memory_order_acquire); }

void Queue::set_blocking(bool blocking) { state_->blocking = blocking; }

}  // namespace spyre::card
