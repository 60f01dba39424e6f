// The work queue of one card: streams, events, host callbacks, the modelled clock, errors.
//
// Work is executed in the order in which it was submitted, one job at a time (a job itself uses
// the thread pool), which satisfies every stream and event order. The host goes on after submit().
// A job's modelled device time is known when it is submitted: stream and engine clocks are advanced
// then, so times are deterministic and never depend on the host's speed. A job that is submitted
// after the host has waited for another one starts no earlier than that one ended.
//
//   queue.submit({.name = "add", .stream = 0, .device_us = 3.5, .run = [=] { ... }});
//   queue.synchronize();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/memory.h"
#include "threads/thread_pool.h"

namespace spyre::card {

constexpr int kStreamsPerCard = 65;  // 0 default, 1-32 low priority, 33-64 high priority

enum class Engine : int8_t { COMPUTE, HOST_TO_CARD, CARD_TO_HOST, NONE };

struct Job {
  std::string name;
  int stream = 0;
  Engine engine = Engine::COMPUTE;
  double device_us = 0;        // modelled duration
  std::function<void()> run;   // must not wait for the card; empty: only takes time
  std::vector<Block*> uses;    // retained until the job is done
  bool small = false;          // takes less time than waking a thread: see submit()
  ThreadPool* pool = nullptr;  // that it shares its work with: a thread that waits for it helps
};

struct QueueState;  // the innards of a Queue, which marks keep alive

// A point in a stream. Copyable; default constructed = never recorded (complete, time 0).
struct Mark {
  int card = -1;
  int stream = 0;
  uint64_t sequence = 0;              // complete when all jobs up to here are done
  double device_us = 0;               // modelled time of the stream when it was recorded
  std::shared_ptr<QueueState> queue;  // where it was recorded
};

// Thrown by the next synchronising call after a job failed: "<job name>: <what>".
struct JobError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An error that is also of this class is thrown again as it is, not as a JobError.
struct KeptError {
  virtual ~KeptError() = default;
};

// A stream that is not 0..64 is a std::out_of_range everywhere below.
class Queue {
 public:
  Queue(int card, Memory& memory);
  ~Queue();  // waits for submitted work; an error that was not asked for is dropped
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Returns the job's sequence number. What `run` has captured is destroyed, and `uses` are
  // released, before the job counts as done. May be called from inside a job. A small job runs on
  // the calling thread when the card is idle; nothing else tells it from a queued one.
  uint64_t submit(Job job);
  // Submits and waits. Runs on the calling thread when the card is idle, which saves two thread
  // switches. An error of this job is thrown as it is; earlier pending errors first, as JobError:
  // the job's time then counts, but it is not run.
  void run(Job job);

  Mark record(int stream);
  // Later work of the stream waits for the mark, which may be of another card.
  void wait(int stream, const Mark& mark);
  void callback(int stream, std::function<void()> host_function);

  // Each of these waits, then throws a pending JobError of the card, once. The waiting thread may
  // execute queued jobs itself, or help with those of others. From inside a job of the card they
  // throw std::logic_error: the job would wait for itself.
  void synchronize(const Mark& mark);
  void synchronize_stream(int stream);
  void synchronize();
  // Waits like synchronize(), leaves errors pending. False, at once, from inside a job of the card.
  bool drain();

  bool done(const Mark& mark) const;
  bool stream_idle(int stream) const;

  double stream_time_us(int stream) const;  // modelled clock
  double busy_us() const;                   // modelled time of all jobs, summed
  uint64_t jobs_done() const;               // callbacks and waits for other cards included

  // When set, submit() behaves like run(): for debugging (SPYRE_LAUNCH_BLOCKING=1). Jobs submitted
  // from inside a job are queued all the same.
  void set_blocking(bool blocking);

 private:
  std::shared_ptr<QueueState> state_;
};

}  // namespace spyre::card
