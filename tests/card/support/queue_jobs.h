// Jobs for tests of the queue: some take time, some fail, some stay at its head until let go.
#pragma once

#include <chrono>
#include <functional>
#include <latch>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "queue/queue.h"

namespace spyre::card {

inline constexpr size_t MiB = 1024 * 1024;

struct TestCard {
  explicit TestCard(int index = 0) : memory(index, MiB), queue(index, memory) {}
  Memory memory;
  Queue queue;
};

inline Job job(std::function<void()> run, int stream = 0, std::string name = "job") {
  return {.name = std::move(name), .stream = stream, .run = std::move(run), .uses = {}};
}

inline Job timed(double us, int stream = 0, Engine engine = Engine::COMPUTE) {
  return {
      .name = "timed", .stream = stream, .engine = engine, .device_us = us, .run = {}, .uses = {}};
}

inline Job failing(const std::string& name, const std::string& what) {
  return job([what] { throw std::runtime_error(what); }, 0, name);
}

// A job that stays at the head of the queue until it is let go.
class Gate {
 public:
  Job job(int stream = 0) {
    return spyre::card::job(
        [this] {
          entered_.count_down();
          open_.acquire();
        },
        stream, "gate");
  }
  void wait_until_entered() { entered_.wait(); }
  void open() { open_.release(); }

 private:
  std::latch entered_{1};
  std::binary_semaphore open_{0};
};

// Occupies the executor of a card, so that everything submitted later stays queued.
struct Occupied {
  explicit Occupied(Queue& queue, int stream = 0) {
    queue.submit(gate.job(stream));
    gate.wait_until_entered();
  }
  Gate gate;
};

template <typename Condition>
bool becomes(Condition&& condition) {
  for (int i = 0; i < 10000 && !condition(); i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

}  // namespace spyre::card
