// A claiming thread pool: a launch is a number of slices that the caller and the workers claim.
//
// The caller works too and waits only for slices that a worker has already claimed, so a busy
// machine costs nothing. Workers spin briefly, then sleep. A thread that waits for what a launch is
// part of can help instead: it is awake, and waking a worker takes longer than a small launch.
// Example: pool.run(32, [&](int i) {...}).
#pragma once

#include <functional>
#include <memory>

namespace spyre::card {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // throws std::invalid_argument below 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Runs slice(0) ... slice(slices - 1), each once, and returns when all are done. The first
  // exception of a slice is rethrown here, when no slice is running any more; slices not yet begun
  // are left out then. Concurrent calls from several threads, and calls from inside a slice, are
  // allowed (they run on the calling thread alone when the pool is taken).
  void run(int slices, const std::function<void(int)>& slice);

  // Works on launches of other threads until `done` is true, or until there has been nothing to do
  // for a short time. `done` is asked often.
  void help(const std::function<bool()>& done);
  // From now on launches of this thread, if they are of many slices, give a helper a moment to come
  // before they wake a worker that sleeps.
  static void expect_help();

  // Threads that work on a launch, the caller included. Workers start on first need.
  int threads() const;
  // Takes effect with the next launch, and may be called at any time, also from inside a slice.
  void resize(int threads);  // throws std::invalid_argument below 1

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spyre::card
