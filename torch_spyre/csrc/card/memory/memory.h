// The memory of one card: an address space of its own and a caching allocator over it.
//
// The space is reserved, not committed: pages cost host memory when first touched. Device
// addresses are not host pointers: dereferencing one on the host faults. Freed blocks are kept for
// reuse (split and merged) until empty_cache() gives their pages back to the host.
// Blocks are multiples of 128 bytes. All functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace spyre::card {

using Address = uint64_t;

struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One allocation. Freed by Memory::free; its bytes are recycled once no queued work uses it.
// All 64-bit integers of a block lie within, where that is known.
struct Limits {
  int64_t low = 1, high = 0;
  bool known() const { return low <= high; }
};

struct Block {
  Address address = 0;
  size_t size = 0;       // multiple of 128
  size_t requested = 0;  // what the caller asked for
  int card = 0;
  std::shared_ptr<const void> note;  // whatever the owner wants to find again by address
  Limits limits;
};

struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};

struct MemoryStats {
  Stat allocation;       // count of blocks handed out
  Stat allocated_bytes;  // their sizes (rounded to 128)
  Stat requested_bytes;
  Stat reserved_bytes;  // address space taken from the card, in use or cached
  Stat active_bytes;    // allocated, or freed while queued work still uses them
  int64_t num_alloc_retries = 0;
  int64_t num_ooms = 0;
};

// Is told which memory comes and goes, by whatever thread does it.
class MemoryWatcher {
 public:
  virtual ~MemoryWatcher() = default;
  virtual void allocated(Address address, size_t bytes) = 0;
  virtual void freed(Address address, size_t bytes) = 0;  // no queued work uses it any more
};

class Memory {
 public:
  // Capacity in bytes, rounded down to 128; from 128 bytes to 1 TiB (std::invalid_argument).
  Memory(int card, size_t capacity);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Throws OutOfMemory with a text that says how much was asked, what is allocated, cached and
  // free, the largest free range, the capacity and how to raise it (SPYRE_MEMORY).
  // bytes == 0 -> nullptr.
  Block* allocate(size_t bytes);
  void free(Block* block);  // nullptr is fine; freeing twice throws std::logic_error

  // Queued work holds the blocks it touches; a block freed meanwhile is recycled at the last
  // release. Blocks of other cards may be given (copies between cards): they go back to their own
  // memory.
  void retain(Block* block);
  void release(Block* block);

  // Called, without any lock, when the card is full while freed blocks are still held by queued
  // work; it may wait for that work. The allocation is then tried once more (num_alloc_retries).
  void set_reclaim(std::function<void()> reclaim);
  // Called before an allocation fails: frees what is kept to save time only, and says whether there
  // was any. The allocation is then tried once more.
  void set_last_resort(std::function<bool()> last_resort);

  // nullptr: none. Not while others allocate or free.
  void set_watcher(MemoryWatcher* watcher);
  // Address and size of all blocks in use.
  std::vector<std::pair<Address, size_t>> blocks() const;

  // For the card's own engines only. Throws std::out_of_range for an address of no or another card.
  std::byte* host(Address address) const;
  // The block in use that an address lies in, or nullptr. For error messages and checks.
  const Block* find(Address address) const;

  MemoryStats stats() const;
  void reset_peak_stats();
  void reset_accumulated_stats();
  void empty_cache();  // gives the pages of cached blocks back
  size_t capacity() const;
  size_t free_bytes() const;    // capacity minus active bytes
  std::string summary() const;  // a readable table

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Device addresses of a card start here; an address names its card. Cards are 0..255, else
// std::out_of_range.
Address base_address(int card);
int card_of(Address address);  // -1 when it is not a device address

std::string human_size(uint64_t bytes);  // "1.50 GiB", "640 B"

}  // namespace spyre::card
