// The caching allocator: nodes, one per range of the address space, and where free ones are kept.
//
// The space below the frontier is cut into nodes without gaps; above it nothing was ever handed out
// or everything was given back. A node is in use, waiting (freed, but queued work holds it), or
// cached. Cached nodes are either *merged* (in `free`, never beside one another) or *quick* (small,
// in a list of their exact size, not merged). Small blocks come and go at a high rate with the same
// few sizes: a quick list serves them without touching a tree. Before the frontier moves, quick
// nodes are merged, so they never make the card look fuller than it is.
#include "memory/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <utility>

namespace spyre::card {

namespace {

constexpr size_t kGranule = 128;                        // one stick
constexpr size_t kQuickLimit = 64 * 1024;               // larger blocks are always merged
constexpr size_t kQuickLists = kQuickLimit / kGranule;  // list i holds nodes of (i + 1) granules
// Above every address that a host gives to programs, so that dereferencing one faults.
constexpr Address kDeviceSpace = 0x0059'0000'0000'0000;
constexpr int kCardBits = 40;
constexpr int kMaxCards = 256;

enum class Use : int8_t { kSpare, kCached, kWaiting, kAllocated };

struct Node;
struct ByAddress {
  using is_transparent = void;
  bool operator()(const Node* a, const Node* b) const;
  bool operator()(Address a, const Node* b) const;
};
struct BySize {  // the smallest that fits, and of equals the lowest: keeps the frontier low
  using is_transparent = void;
  bool operator()(const Node* a, const Node* b) const;
  bool operator()(const Node* a, size_t size) const;
};
using AddressOrder = std::set<Node*, ByAddress>;
using SizeOrder = std::set<Node*, BySize>;

struct Node : Block {
  void* owner = nullptr;        // the Memory::State that it belongs to
  std::atomic<int> holders{0};  // the owner of the allocation, and each retain()
  Use use = Use::kSpare;
  bool merged = false;   // cached, and in the order of sizes
  Node* next = nullptr;  // in a quick list, or in the list of spare nodes
  AddressOrder::iterator by_address;
  SizeOrder::iterator by_size;

  Address end() const { return address + size; }
};

bool ByAddress::operator()(const Node* a, const Node* b) const { return a->address < b->address; }
bool ByAddress::operator()(Address a, const Node* b) const { return a < b->address; }
bool BySize::operator()(const Node* a, const Node* b) const {
  return a->size != b->size ? a->size < b->size : a->address < b->address;
}
bool BySize::operator()(const Node* a, size_t size) const { return a->size < size; }

Node* node_of(Block* block) { return static_cast<Node*>(block); }

void increase(Stat& stat, int64_t amount) {
  stat.current += amount;
  stat.allocated += amount;
  stat.peak = std::max(stat.peak, stat.current);
}

void decrease(Stat& stat, int64_t amount) {
  stat.current -= amount;
  stat.freed += amount;
}

std::array<Stat*, 5> all(MemoryStats& stats) {
  return {&stats.allocation, &stats.allocated_bytes, &stats.requested_bytes, &stats.reserved_bytes,
          &stats.active_bytes};
}

std::string hex(Address address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(address));
  return text;
}

// Reserved without commitment: the host gives pages when they are touched.
std::byte* map_space(int card, size_t capacity) {
  void* space = mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) {
    throw std::runtime_error("Spyre card " + std::to_string(card) + ": the host gives no " +
                             human_size(capacity) + " of address space for its memory (" +
                             std::strerror(errno) +
                             "); set SPYRE_MEMORY=<size> to give the card less");
  }
  return static_cast<std::byte*>(space);
}

size_t checked_capacity(size_t capacity) {
  capacity -= capacity % kGranule;
  if (capacity == 0 || capacity > size_t{1} << kCardBits) {
    throw std::invalid_argument("a card's memory has 128 bytes to 1 TiB, not " +
                                human_size(capacity));
  }
  return capacity;
}

}  // namespace

struct Memory::State {
  State(int card, size_t bytes)
      : card(card),
        base(base_address(card)),
        capacity(checked_capacity(bytes)),
        space(map_space(card, capacity)),
        frontier(base) {}
  ~State() { munmap(space, capacity); }

  const int card;
  const Address base;
  const size_t capacity;
  std::byte* const space;

  mutable std::mutex mutex;  // guards everything below
  Address frontier;
  AddressOrder nodes;  // all below the frontier
  SizeOrder free;      // merged cached nodes
  std::array<Node*, kQuickLists> quick{};
  std::array<uint64_t, kQuickLists / 64> quick_filled{};  // which lists are not empty
  std::deque<Node> arena;  // addresses of nodes are handed out: they never move
  Node* spare = nullptr;
  MemoryStats stats;
  std::function<void()> reclaim;
  std::function<bool()> last_resort;
  MemoryWatcher* watcher = nullptr;

  // Taking a range
  Block* try_allocate(size_t bytes, size_t size);
  Node* take_quick(size_t size);
  Node* take_free(size_t size);
  Node* take_frontier(size_t size);
  void split(Node* node, size_t size);

  // Giving it back
  void let_go(Node* node);
  void recycle(Node* node);
  void merge(Node* node);
  void merge_quick();
  void absorb(Node* node, Node* next);
  void discard_pages(Address begin, Address end);

  // Nodes and orders
  Node* new_node(Address address, size_t size, AddressOrder::iterator before);
  void remove_node(Node* node);
  void add_free(Node* node);
  void remove_free(Node* node);
  bool is_free(AddressOrder::iterator at) const;
  size_t beyond_frontier() const { return base + capacity - frontier; }
  size_t largest_free() const;
  std::string out_of_memory(size_t bytes) const;
};

// ---- Taking a range ---------------------------------------------------------------------------

Block* Memory::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (bytes <= s.capacity) {  // rounding up cannot overflow then
    const size_t size = (bytes + kGranule - 1) / kGranule * kGranule;
    if (Block* block = s.try_allocate(bytes, size)) return block;
    if (s.stats.active_bytes.current > s.stats.allocated_bytes.current && s.reclaim) {
      s.stats.num_alloc_retries++;
      const auto reclaim = s.reclaim;
      lock.unlock();
      reclaim();
      lock.lock();
      if (Block* block = s.try_allocate(bytes, size)) return block;
    }
    if (s.last_resort) {
      const auto last_resort = s.last_resort;
      lock.unlock();
      const bool freed = last_resort();
      lock.lock();
      if (freed) {
        if (Block* block = s.try_allocate(bytes, size)) return block;
      }
    }
  }
  s.stats.num_ooms++;
  s.merge_quick();  // the text gives the largest range that could be had
  throw OutOfMemory(s.out_of_memory(bytes));
}

Block* Memory::State::try_allocate(size_t bytes, size_t size) {
  Node* node = take_quick(size);
  if (!node) node = take_free(size);
  if (!node) {
    merge_quick();
    node = take_free(size);
  }
  if (!node) node = take_frontier(size);
  if (!node) return nullptr;

  node->use = Use::kAllocated;
  node->requested = bytes;
  node->holders.store(1, std::memory_order_relaxed);
  increase(stats.allocation, 1);
  increase(stats.allocated_bytes, size);
  increase(stats.requested_bytes, bytes);
  increase(stats.active_bytes, size);
  if (watcher) watcher->allocated(node->address, size);
  return node;
}

Node* Memory::State::take_quick(size_t size) {
  if (size > kQuickLimit) return nullptr;
  const size_t list = size / kGranule - 1;
  Node* node = quick[list];
  if (!node) return nullptr;
  quick[list] = node->next;
  if (!node->next) quick_filled[list / 64] &= ~(uint64_t{1} << list % 64);
  return node;
}

Node* Memory::State::take_free(size_t size) {
  const auto best = free.lower_bound(size);
  if (best == free.end()) return nullptr;
  Node* node = *best;
  remove_free(node);
  split(node, size);
  return node;
}

// A cached node that ends at the frontier is made longer, so that no hole is left.
Node* Memory::State::take_frontier(size_t size) {
  Node* last = nodes.empty() ? nullptr : *nodes.rbegin();
  if (last && !(last->use == Use::kCached && last->merged)) last = nullptr;
  const size_t grow = last ? size - last->size : size;
  if (grow > beyond_frontier()) return nullptr;

  if (last) {
    remove_free(last);
    last->size = size;
  } else {
    last = new_node(frontier, size, nodes.end());
  }
  frontier += grow;
  increase(stats.reserved_bytes, grow);
  return last;
}

// Keeps the first `size` bytes of a node that is in no order; the rest becomes free.
void Memory::State::split(Node* node, size_t size) {
  if (node->size == size) return;
  Node* rest = new_node(node->address + size, node->size - size, std::next(node->by_address));
  node->size = size;
  add_free(rest);
}

// ---- Giving it back ---------------------------------------------------------------------------

void Memory::free(Block* block) {
  if (!block) return;
  State& s = *state_;
  Node* node = node_of(block);
  std::lock_guard lock(s.mutex);
  if (node->owner != &s || node->use != Use::kAllocated) {
    throw std::logic_error("Spyre card " + std::to_string(s.card) + ": the block at " +
                           hex(block->address) + " is freed, but is not allocated here");
  }
  node->use = Use::kWaiting;
  decrease(s.stats.allocation, 1);
  decrease(s.stats.allocated_bytes, node->size);
  decrease(s.stats.requested_bytes, node->requested);
  // Acquire: what other holders wrote happens before the bytes are handed out again.
  if (node->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) s.recycle(node);
}

void Memory::retain(Block* block) {
  if (block) node_of(block)->holders.fetch_add(1, std::memory_order_relaxed);
}

void Memory::release(Block* block) {
  if (!block) return;
  Node* node = node_of(block);
  if (node->holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  static_cast<State*>(node->owner)->let_go(node);
}

void Memory::State::let_go(Node* node) {
  std::lock_guard lock(mutex);
  if (node->use != Use::kWaiting) {
    node->holders.fetch_add(1);  // its owner's
    throw std::logic_error("Spyre card " + std::to_string(card) + ": the block at " +
                           hex(node->address) + " is released more often than it was retained");
  }
  recycle(node);
}

void Memory::State::recycle(Node* node) {
  decrease(stats.active_bytes, node->size);
  if (watcher) watcher->freed(node->address, node->size);
  node->use = Use::kCached;
  if (node->size > kQuickLimit) return merge(node);
  const size_t list = node->size / kGranule - 1;
  node->next = quick[list];
  quick[list] = node;
  quick_filled[list / 64] |= uint64_t{1} << list % 64;
}

// Joins a cached node that is in no order with its free neighbours, and makes it free.
void Memory::State::merge(Node* node) {
  if (const auto after = std::next(node->by_address); is_free(after)) {
    remove_free(*after);
    absorb(node, *after);
  }
  if (node->by_address != nodes.begin() && is_free(std::prev(node->by_address))) {
    Node* left = *std::prev(node->by_address);
    remove_free(left);
    absorb(left, node);
    node = left;
  }
  add_free(node);
}

void Memory::State::absorb(Node* node, Node* next) {
  node->size += next->size;
  remove_node(next);
}

void Memory::State::merge_quick() {
  for (size_t word = 0; word < quick_filled.size(); word++) {
    for (; quick_filled[word]; quick_filled[word] &= quick_filled[word] - 1) {
      const size_t list = word * 64 + std::countr_zero(quick_filled[word]);
      for (Node* node = std::exchange(quick[list], nullptr); node;) {
        merge(std::exchange(node, node->next));
      }
    }
  }
}

void Memory::empty_cache() {
  State& s = *state_;
  std::lock_guard lock(s.mutex);
  s.merge_quick();
  for (const Node* node : s.free) s.discard_pages(node->address, node->end());
  if (s.nodes.empty() || !s.is_free(std::prev(s.nodes.end()))) return;
  Node* last = *s.nodes.rbegin();
  s.frontier = last->address;
  decrease(s.stats.reserved_bytes, last->size);
  s.remove_free(last);
  s.remove_node(last);
}

// Only whole pages: a page that a neighbour shares keeps its bytes.
void Memory::State::discard_pages(Address begin, Address end) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (end == frontier) end = base + (end - base + page - 1) / page * page;
  begin = base + (begin - base + page - 1) / page * page;
  end = std::min<Address>(base + (end - base) / page * page, base + capacity);
  if (begin < end) madvise(space + (begin - base), end - begin, MADV_DONTNEED);
}

// ---- Nodes and orders -------------------------------------------------------------------------

Node* Memory::State::new_node(Address address, size_t size, AddressOrder::iterator before) {
  Node* node = spare;
  if (node) {
    spare = node->next;
  } else {
    node = &arena.emplace_back();
    node->owner = this;
    node->card = card;
  }
  node->address = address;
  node->size = size;
  node->by_address = nodes.insert(before, node);
  return node;
}

void Memory::State::remove_node(Node* node) {
  nodes.erase(node->by_address);
  node->use = Use::kSpare;
  node->next = spare;
  spare = node;
}

void Memory::State::add_free(Node* node) {
  node->use = Use::kCached;
  node->merged = true;
  node->by_size = free.insert(node).first;
}

void Memory::State::remove_free(Node* node) {
  free.erase(node->by_size);
  node->merged = false;
}

bool Memory::State::is_free(AddressOrder::iterator at) const {
  return at != nodes.end() && (*at)->merged;
}

// ---- Asking -----------------------------------------------------------------------------------

Memory::Memory(int card, size_t capacity) : state_(std::make_unique<State>(card, capacity)) {}

Memory::~Memory() = default;

void Memory::set_last_resort(std::function<bool()> last_resort) {
  std::lock_guard lock(state_->mutex);
  state_->last_resort = std::move(last_resort);
}

void Memory::set_reclaim(std::function<void()> reclaim) {
  std::lock_guard lock(state_->mutex);
  state_->reclaim = std::move(reclaim);
}

void Memory::set_watcher(MemoryWatcher* watcher) {
  std::lock_guard lock(state_->mutex);
  state_->watcher = watcher;
}

std::vector<std::pair<Address, size_t>> Memory::blocks() const {
  std::lock_guard lock(state_->mutex);
  std::vector<std::pair<Address, size_t>> found;
  for (const Node* node : state_->nodes) {
    if (node->use == Use::kAllocated || node->use == Use::kWaiting) {
      found.emplace_back(node->address, node->size);
    }
  }
  return found;
}

std::byte* Memory::host(Address address) const {
  const Address offset = address - state_->base;  // wraps to a large number below the base
  if (offset > state_->capacity) {
    throw std::out_of_range(hex(address) + " is no address of Spyre card " +
                            std::to_string(state_->card));
  }
  return state_->space + offset;
}

const Block* Memory::find(Address address) const {
  std::lock_guard lock(state_->mutex);
  auto after = state_->nodes.upper_bound(address);
  if (after == state_->nodes.begin()) return nullptr;
  const Node* node = *std::prev(after);
  const bool in_use = node->use == Use::kAllocated || node->use == Use::kWaiting;
  return in_use && address < node->end() ? node : nullptr;
}

MemoryStats Memory::stats() const {
  std::lock_guard lock(state_->mutex);
  return state_->stats;
}

void Memory::reset_peak_stats() {
  std::lock_guard lock(state_->mutex);
  for (Stat* stat : all(state_->stats)) stat->peak = stat->current;
}

void Memory::reset_accumulated_stats() {
  std::lock_guard lock(state_->mutex);
  for (Stat* stat : all(state_->stats)) stat->allocated = stat->freed = 0;
  state_->stats.num_alloc_retries = state_->stats.num_ooms = 0;
}

size_t Memory::capacity() const { return state_->capacity; }

size_t Memory::free_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->capacity - state_->stats.active_bytes.current;
}

size_t Memory::State::largest_free() const {
  const size_t cached = free.empty() ? 0 : (*free.rbegin())->size;
  const bool last_free = !nodes.empty() && is_free(std::prev(nodes.end()));
  return std::max(cached, beyond_frontier() + (last_free ? (*nodes.rbegin())->size : 0));
}

std::string Memory::State::out_of_memory(size_t bytes) const {
  const size_t active = stats.active_bytes.current;
  const size_t allocated = stats.allocated_bytes.current;
  std::string text =
      "Spyre card " + std::to_string(card) + " is out of memory: " + human_size(bytes) + " (" +
      std::to_string(bytes) + " bytes) asked, " + human_size(capacity - active) + " free of " +
      human_size(capacity) + ", largest free range " + human_size(largest_free()) + "; " +
      human_size(allocated) + " allocated in " + std::to_string(stats.allocation.current) +
      (stats.allocation.current == 1 ? " allocation, " : " allocations, ");
  if (active > allocated) text += human_size(active - allocated) + " held by queued work, ";
  text += human_size(stats.reserved_bytes.current - active) + " cached.";
  text += " Free some tensors, or set SPYRE_MEMORY=<size> to give the card more.";
  return text;
}

std::string Memory::summary() const {
  const MemoryStats s = stats();
  char line[128];
  std::string table;
  const auto row = [&](const char* name, const std::string(&cells)[4]) {
    std::snprintf(line, sizeof line, "| %-16s | %12s | %12s | %12s | %12s |\n", name,
                  cells[0].c_str(), cells[1].c_str(), cells[2].c_str(), cells[3].c_str());
    table += line;
  };
  const auto stat_row = [&](const char* name, const Stat& stat, auto&& show) {
    row(name, {show(stat.current), show(stat.peak), show(stat.allocated), show(stat.freed)});
  };
  const auto count = [](int64_t value) { return std::to_string(value); };
  const auto bytes = [](int64_t value) { return human_size(value); };

  table += "Spyre card " + std::to_string(state_->card) + ": " + human_size(state_->capacity) +
           " memory, " + human_size(state_->capacity - s.active_bytes.current) + " free; " +
           std::to_string(s.num_ooms) + " out-of-memory errors, " +
           std::to_string(s.num_alloc_retries) + " retries\n";
  row("", {"current", "peak", "total alloc", "total freed"});
  stat_row("Allocations", s.allocation, count);
  stat_row("Allocated memory", s.allocated_bytes, bytes);
  stat_row("Requested memory", s.requested_bytes, bytes);
  stat_row("Active memory", s.active_bytes, bytes);
  stat_row("Reserved memory", s.reserved_bytes, bytes);
  return table;
}

Address base_address(int card) {
  if (card < 0 || card >= kMaxCards) {
    throw std::out_of_range("card " + std::to_string(card) + " does not exist: cards are 0..255");
  }
  return kDeviceSpace + (static_cast<Address>(card) << kCardBits);
}

int card_of(Address address) {
  const Address offset = address - kDeviceSpace;  // wraps to a large number below the space
  const Address card = offset >> kCardBits;
  return card < kMaxCards ? static_cast<int>(card) : -1;
}

std::string human_size(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    unit++;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace spyre::card
