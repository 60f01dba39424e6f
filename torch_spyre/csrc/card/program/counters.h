// What the programs of a card have done: modelled time and bytes, counted as their steps run.
//
// Bytes are those of the operations as bundles have them, see docs/architecture/device_time.md: an
// operand that the emulator keeps in a register between two operations counts as the card would
// move it.
//
//   Totals totals = card.counters.get();
#pragma once

#include <cstdint>
#include <mutex>

namespace spyre::card {

struct Totals {
  double device_us = 0;
  int64_t memory_read = 0, memory_written = 0;  // bytes between device memory and the cores
  int64_t lx = 0;                               // bytes between cores and their scratchpads
  int64_t ring = 0;                             // bytes of partial sums between cores
  int64_t launches = 0;

  Totals& operator+=(const Totals& other) {
    device_us += other.device_us;
    memory_read += other.memory_read;
    memory_written += other.memory_written;
    lx += other.lx;
    ring += other.ring;
    launches += other.launches;
    return *this;
  }
};

class Counters {
 public:
  void add(const Totals& totals) {
    const std::lock_guard<std::mutex> lock(mutex_);
    totals_ += totals;
  }
  Totals get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return totals_;
  }
  void reset() {
    const std::lock_guard<std::mutex> lock(mutex_);
    totals_ = {};
  }

 private:
  mutable std::mutex mutex_;
  Totals totals_;
};

}  // namespace spyre::card
