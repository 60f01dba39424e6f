// Puts the parts of a card together.
#include "card.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "sanitizer/sanitizer.h"

namespace spyre::card {

Scratchpads::Scratchpads(int cores, size_t bytes_each) : bytes_(cores * bytes_each) {
  if (bytes_ == 0) return;
  const size_t all = (1 + SHARED_FACTOR) * bytes_;
  space_ = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
  if (space_ == MAP_FAILED) {
    throw std::runtime_error("the host gives no " + human_size(all) +
                             " of address space for scratchpads (" + std::strerror(errno) + ")");
  }
  shared_ = static_cast<std::byte*>(space_) + bytes_;
#if defined(MADV_HUGEPAGE)
  // Steps walk through megabytes of it in strides of a kilobyte and more, which is more small pages
  // than a processor remembers. A wish that the system may ignore.
  (void)::madvise(shared_, SHARED_FACTOR * bytes_, MADV_HUGEPAGE);
#endif
  for (int core = 0; core < cores; core++) {
    by_core_.push_back(static_cast<std::byte*>(space_) + core * bytes_each);
  }
}

Scratchpads::~Scratchpads() {
  if (!by_core_.empty()) munmap(space_, (1 + SHARED_FACTOR) * bytes_);
}

Card::Card(int index, const Hardware& hardware, size_t memory_bytes)
    : index(index),
      hardware(hardware),
      memory(index, memory_bytes),
      lx(hardware.cores, hardware.lx_bytes),
      sanitizer(std::make_unique<Sanitizer>(index, memory, lx.by_core(), hardware.lx_bytes,
                                            hardware.span_bytes)),
      queue(index, memory) {
  // Memory that was freed comes back when the queued work that still reads it is done.
  memory.set_reclaim([this] { queue.drain(); });
}

Card::~Card() = default;

}  // namespace spyre::card
