// One emulated Spyre card: its numbers, its memory, the scratchpads of its cores and its queue with
// the modelled clock.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/dma.h"
#include "memory/memory.h"
#include "program/counters.h"
#include "queue/queue.h"
#include "threads/thread_pool.h"

namespace spyre::card {

class Sanitizer;

// The numbers of the card. torch_spyre/hardware.py is their one source; it fills this in.
struct Hardware {
  int cores = 0;
  size_t lx_bytes = 0;      // scratchpad per core
  size_t memory_bytes = 0;  // device memory
  int64_t span_bytes = 0;   // that a core may address of one tensor
  double memory_bytes_per_us = 0;
  double host_bytes_per_us = 0;  // PCIe, each direction
  double job_us = 0;             // fixed cost of starting a job
  double dma_us = 0;             // fixed cost of starting a transfer

  // Modelled time of moving bytes between the host and the card.
  double transfer_us(int64_t bytes) const {
    return dma_us + static_cast<double>(bytes) / host_bytes_per_us;
  }
};

// The LX memories of a card's cores. Host pages are taken when first touched; contents stay from
// one step, and from one program, to the next.
class Scratchpads {
 public:
  Scratchpads(int cores, size_t bytes_each);
  ~Scratchpads();
  Scratchpads(const Scratchpads&) = delete;
  Scratchpads& operator=(const Scratchpads&) = delete;

  std::span<std::byte* const> by_core() const { return by_core_; }
  // Room for what they hold, in one piece (Space::SHARED). Larger than all of them, so that places
  // need not be given away at once.
  std::byte* shared() const { return static_cast<std::byte*>(shared_); }
  static constexpr size_t SHARED_FACTOR = 16;

 private:
  void* space_ = nullptr;
  void* shared_ = nullptr;
  size_t bytes_ = 0;
  std::vector<std::byte*> by_core_;
};

class Card {
 public:
  Card(int index, const Hardware& hardware, size_t memory_bytes);
  ~Card();

  const int index;
  const Hardware hardware;
  Memory memory;
  Scratchpads lx;
  Counters counters;
  const std::unique_ptr<Sanitizer> sanitizer;  // off until it is enabled
  Queue queue;                                 // declared last: it stops before the memory goes
};

}  // namespace spyre::card
