#include "sanitizer/shadow.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace spyre::card {
namespace {

template <class T>
T* map_array(size_t count) {
  void* space = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) {
    throw std::runtime_error(
        "the host gives no address space for the sanitizer (" + std::string(std::strerror(errno)) +
        "); set SPYRE_MEMORY=<size> to give the card less, or run without SPYRE_SANITIZE");
  }
  return static_cast<T*>(space);
}

}  // namespace

Shadow::Shadow(size_t bytes) : sticks_(bytes / kStickBytes) {
  states_ = map_array<StickState>(sticks_);
  for (StickTag*& tags : tags_) tags = map_array<StickTag>(sticks_);
}

Shadow::~Shadow() {
  munmap(states_, sticks_ * sizeof(StickState));
  for (StickTag* tags : tags_) munmap(tags, sticks_ * sizeof(StickTag));
}

void Shadow::fill(size_t first, size_t bytes, const StickState& state) {
  const size_t begin = first / kStickBytes;
  const size_t end = std::min(sticks_, (first + bytes + kStickBytes - 1) / kStickBytes);
  if (begin < end) std::fill(states_ + begin, states_ + end, state);
}

// Pages that hold nothing else go back to the host: large tensors cost nothing before they are
// written. For smaller ones it costs less to write the pages than to get new ones.
void Shadow::forget(size_t first, size_t bytes) {
  constexpr ptrdiff_t kMostWritten = (4 << 20) / sizeof(StickState);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  StickState* const begin = states_ + first / kStickBytes;
  StickState* const end =
      states_ + std::min(sticks_, (first + bytes + kStickBytes - 1) / kStickBytes);
  const auto round_up = [&](StickState* at) {
    const auto address = reinterpret_cast<uintptr_t>(at);
    return reinterpret_cast<std::byte*>((address + page - 1) / page * page);
  };
  std::byte* const first_page = round_up(begin);
  std::byte* const last_page = round_up(end) - page;
  if (last_page <= first_page || end - begin <= kMostWritten) {
    std::fill(begin, end, StickState{});
    return;
  }
  std::memset(static_cast<void*>(begin), 0, first_page - reinterpret_cast<std::byte*>(begin));
  madvise(first_page, last_page - first_page, MADV_DONTNEED);
  std::memset(static_cast<void*>(last_page), 0, reinterpret_cast<std::byte*>(end) - last_page);
}

void Shadow::clear() {
  madvise(states_, sticks_ * sizeof(StickState), MADV_DONTNEED);
  for (StickTag* tags : tags_) madvise(tags, sticks_ * sizeof(StickTag), MADV_DONTNEED);
}

}  // namespace spyre::card
