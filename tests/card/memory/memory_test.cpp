// Memory: addresses, the caching allocator, statistics, errors, and all of it under threads.
#include "memory/memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "support/check.h"

using namespace spyre::card;

namespace {

constexpr size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;
constexpr size_t kLarge = 256 * KiB;  // well above the sizes that have quick lists

size_t rounded(size_t bytes) { return (bytes + 127) / 128 * 128; }

size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

bool page_is_resident(const Memory& memory, Address address) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto where = reinterpret_cast<uintptr_t>(memory.host(address)) / page * page;
  unsigned char state = 0;
  return mincore(reinterpret_cast<void*>(where), 1, &state) == 0 && (state & 1);
}

void fill(const Memory& memory, const Block* block, unsigned char seed) {
  std::memset(memory.host(block->address), seed, block->size);
}

bool filled(const Memory& memory, const Block* block, unsigned char seed) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory.host(block->address));
  // All bytes are equal when the block equals itself shifted by one.
  return bytes[0] == seed && std::memcmp(bytes, bytes + 1, block->size - 1) == 0;
}

std::string oom_text(Memory& memory, size_t bytes) {
  try {
    memory.free(memory.allocate(bytes));
  } catch (const OutOfMemory& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

// ---- Addresses --------------------------------------------------------------------------------

TEST(blocks_are_multiples_of_128_bytes_and_remember_the_request) {
  Memory memory(3, MiB);
  for (size_t bytes : {1, 127, 128, 129, 1000, 65536, 65537, 200000}) {
    Block* block = memory.allocate(bytes);
    CHECK_EQ(block->size, rounded(bytes));
    CHECK_EQ(block->requested, bytes);
    CHECK_EQ(block->card, 3);
    CHECK_EQ(block->address % 128, 0);
    CHECK_EQ(card_of(block->address), 3);
  }
}

TEST(no_bytes_are_no_block) {
  Memory memory(0, MiB);
  CHECK(memory.allocate(0) == nullptr);
  memory.free(nullptr);
  memory.retain(nullptr);
  memory.release(nullptr);
  CHECK_EQ(memory.stats().allocation.allocated, 0);
}

TEST(an_address_names_its_card) {
  CHECK_EQ(base_address(0), 0x0059'0000'0000'0000u);
  CHECK_EQ(base_address(1), 0x0059'0100'0000'0000u);
  CHECK_EQ(card_of(base_address(0)), 0);
  CHECK_EQ(card_of(base_address(1) - 1), 0);
  CHECK_EQ(card_of(base_address(1)), 1);
  CHECK_EQ(card_of(base_address(255) + 12345), 255);
  CHECK_EQ(card_of(base_address(0) - 1), -1);
  CHECK_EQ(card_of(0x005a'0000'0000'0000), -1);
  CHECK_EQ(card_of(0), -1);
  CHECK_EQ(card_of(~Address{0}), -1);
  CHECK_THROWS(base_address(256), std::out_of_range, "card 256");
  CHECK_THROWS(base_address(-1), std::out_of_range, "card -1");
}

TEST(the_host_mapping_is_bounded) {
  Memory memory(1, MiB);
  std::byte* first = memory.host(base_address(1));
  CHECK_EQ(memory.host(base_address(1) + MiB) - first, MiB);
  CHECK_THROWS(memory.host(base_address(1) + MiB + 1), std::out_of_range, "Spyre card 1");
  CHECK_THROWS(memory.host(base_address(1) - 1), std::out_of_range, "Spyre card 1");
  CHECK_THROWS(memory.host(0), std::out_of_range, "0x0000000000000000");
}

TEST(dereferencing_a_device_address_on_the_host_faults) {
  Memory memory(0, MiB);
  Block* block = memory.allocate(4096);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);  // sanitizers install their own handler
    signal(SIGBUS, SIG_DFL);
    *reinterpret_cast<volatile char*>(block->address) = 1;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK_EQ(WTERMSIG(status), SIGSEGV);
}

TEST(capacity_is_rounded_down_and_checked) {
  CHECK_EQ(Memory(0, 1000).capacity(), 896);
  CHECK_THROWS(Memory(0, 127), std::invalid_argument, "128 bytes to 1 TiB");
  CHECK_THROWS(Memory(0, 1024 * GiB + 128), std::invalid_argument, "128 bytes to 1 TiB");
}

TEST(a_128_gib_card_costs_nothing_until_it_is_touched) {
  const size_t before = resident_bytes();
  Memory memory(0, 128 * GiB);
  Block* block = memory.allocate(100 * GiB);
  memory.host(block->address + 99 * GiB)[0] = std::byte{1};
  CHECK(resident_bytes() < before + 16 * MiB);
  CHECK_EQ(memory.free_bytes(), 28 * GiB);
}

// ---- Splitting, merging, the frontier ---------------------------------------------------------

TEST(a_freed_block_is_handed_out_again) {
  for (const size_t bytes : {size_t{1000}, kLarge}) {
    Memory memory(0, MiB);
    Block* first = memory.allocate(bytes);
    const Address address = first->address;
    memory.free(first);
    CHECK_EQ(memory.allocate(bytes)->address, address);
    CHECK_EQ(memory.stats().reserved_bytes.current, rounded(bytes));
  }
}

TEST(the_smallest_range_that_fits_is_taken) {
  Memory memory(0, 64 * MiB);
  Block* holes[3];
  const size_t sizes[3] = {4 * MiB, 1 * MiB, 2 * MiB};
  for (int i = 0; i < 3; i++) {
    holes[i] = memory.allocate(sizes[i]);
    memory.allocate(kLarge);  // keeps the holes apart
  }
  const Address middle = holes[2]->address;
  for (Block* hole : holes) memory.free(hole);
  const auto reserved = memory.stats().reserved_bytes.current;
  CHECK_EQ(memory.allocate(MiB + 128)->address, middle);
  CHECK_EQ(memory.allocate(MiB - 128)->address, middle + MiB + 128);  // what was split off
  CHECK_EQ(memory.stats().reserved_bytes.current, reserved);
}

TEST(neighbours_are_merged_in_whatever_order_they_are_freed) {
  for (const size_t bytes : {size_t{1280}, kLarge}) {
    std::array<int, 4> order = {0, 1, 2, 3};
    do {
      Memory memory(0, 4 * MiB);
      std::array<Block*, 4> blocks;
      for (Block*& block : blocks) block = memory.allocate(bytes);
      Block* fence = memory.allocate(bytes);
      const Address first = blocks[0]->address;
      for (const int i : order) memory.free(blocks[i]);
      CHECK_EQ(memory.allocate(4 * bytes)->address, first);
      CHECK_EQ(memory.stats().reserved_bytes.current, 5 * bytes);
      memory.free(fence);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(the_last_cached_range_is_made_longer_instead_of_leaving_a_hole) {
  Memory memory(0, 8 * MiB);
  memory.allocate(MiB);
  Block* last = memory.allocate(2 * MiB);
  const Address address = last->address;
  memory.free(last);
  CHECK_EQ(memory.allocate(7 * MiB)->address, address);
  CHECK_EQ(memory.stats().reserved_bytes.current, 8 * MiB);
}

TEST(after_small_blocks_are_freed_the_whole_card_is_one_range) {
  Memory memory(0, 4 * MiB);
  for (int round = 0; round < 3; round++) {
    std::vector<Block*> blocks;
    for (size_t i = 0; memory.free_bytes() > 0; i++) {
      blocks.push_back(memory.allocate(std::min<size_t>(128 + i % 7 * 1000, memory.free_bytes())));
    }
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(round));
    for (Block* block : blocks) memory.free(block);
    Block* whole = memory.allocate(4 * MiB);
    CHECK_EQ(whole->address, base_address(0));
    memory.free(whole);
  }
}

// The reference keeps a sorted list of what is live, and looks at the gaps between.
TEST(random_use_agrees_with_a_list_of_gaps) {
  constexpr size_t capacity = 2 * MiB;
  Memory memory(0, capacity);
  std::mt19937 random(7);
  std::vector<Block*> live;
  const auto largest_gap = [&] {
    std::sort(live.begin(), live.end(), [](auto* a, auto* b) { return a->address < b->address; });
    Address end = base_address(0);
    size_t gap = 0;
    for (const Block* block : live) {
      CHECK(block->address >= end);  // nothing overlaps
      gap = std::max<size_t>(gap, block->address - end);
      end = block->address + block->size;
    }
    return std::max<size_t>(gap, base_address(0) + capacity - end);
  };
  for (int step = 0; step < 3000; step++) {
    if (live.empty() || random() % 5 < 3) {
      const size_t bytes = random() % 8 ? 1 + random() % 4000 : 1 + random() % 300000;
      try {
        live.push_back(memory.allocate(bytes));
      } catch (const OutOfMemory&) {
        CHECK(rounded(bytes) > largest_gap());
      }
    } else {
      std::swap(live[random() % live.size()], live.back());
      memory.free(live.back());
      live.pop_back();
    }
    if (step % 100 == 0) {
      const size_t gap = largest_gap();
      if (gap) memory.free(memory.allocate(gap));
      CHECK_THROWS(memory.allocate(gap + 1), OutOfMemory, "largest free range " + human_size(gap));
    }
    if (step % 500 == 0) memory.empty_cache();
  }
  CHECK(memory.stats().num_ooms > 30);  // the test has reached a full card, too
}

TEST(fragmentation_stays_small_at_half_load) {
  constexpr size_t capacity = 256 * MiB;
  Memory memory(0, capacity);
  std::mt19937 random(3);
  std::vector<Block*> live;
  for (int step = 0; step < 40000; step++) {
    const size_t bytes = random() % 4 ? 1 + random() % (16 * KiB) : 1 + random() % (2 * MiB);
    while (capacity - memory.free_bytes() + bytes > capacity / 2) {
      std::swap(live[random() % live.size()], live.back());
      memory.free(live.back());
      live.pop_back();
    }
    live.push_back(memory.allocate(bytes));  // an OutOfMemory here ends the test
  }
  const MemoryStats stats = memory.stats();
  CHECK(stats.allocated_bytes.peak > int64_t{120 * MiB});
  CHECK(stats.reserved_bytes.peak < stats.allocated_bytes.peak * 3 / 2);
}

// ---- Giving pages back ------------------------------------------------------------------------

TEST(freeing_keeps_pages_and_empty_cache_gives_them_back) {
  Memory memory(0, 8 * MiB);
  Block* block = memory.allocate(4 * MiB);
  Block* fence = memory.allocate(128);
  const Address address = block->address;
  fill(memory, block, 1);
  fill(memory, fence, 2);
  memory.free(block);
  CHECK(page_is_resident(memory, address + MiB));
  memory.empty_cache();
  CHECK(!page_is_resident(memory, address + MiB));
  CHECK(filled(memory, fence, 2));
  CHECK_EQ(memory.stats().reserved_bytes.current, 4 * MiB + 128);  // the fence keeps the frontier
  memory.free(fence);
  memory.empty_cache();
  CHECK_EQ(memory.stats().reserved_bytes.current, 0);
  CHECK_EQ(memory.stats().reserved_bytes.freed, 4 * MiB + 128);
  CHECK(!page_is_resident(memory, address + 4 * MiB));
  CHECK_EQ(memory.allocate(8 * MiB)->address, address);
}

TEST(empty_cache_keeps_the_bytes_of_neighbours_on_the_same_page) {
  Memory memory(0, MiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 200; i++) {
    blocks.push_back(memory.allocate(128 + i % 3 * 5000));
    fill(memory, blocks.back(), i);
  }
  for (int i = 0; i < 200; i += 2) memory.free(blocks[i]);
  memory.empty_cache();
  for (int i = 1; i < 200; i += 2) CHECK(filled(memory, blocks[i], i));
}

TEST(a_capacity_that_is_no_multiple_of_a_page_can_be_emptied) {
  Memory memory(0, 10 * KiB + 128);
  memory.free(memory.allocate(10 * KiB + 128));
  memory.empty_cache();
  CHECK_EQ(memory.stats().reserved_bytes.current, 0);
  CHECK_EQ(memory.allocate(10 * KiB + 128)->address, base_address(0));
}

// ---- Running out ------------------------------------------------------------------------------

TEST(out_of_memory_says_everything) {
  Memory memory(0, 16 * MiB);
  memory.allocate(4 * MiB);
  Block* cached = memory.allocate(2 * MiB);
  memory.allocate(3 * MiB);
  memory.free(cached);
  const std::string text = oom_text(memory, 8 * MiB);
  for (const char* part : {"Spyre card 0 is out of memory", "8.00 MiB (8388608 bytes) asked",
                           "9.00 MiB free of 16.00 MiB", "largest free range 7.00 MiB",
                           "7.00 MiB allocated in 2 allocations", "2.00 MiB cached",
                           "set SPYRE_MEMORY=<size> to give the card more"}) {
    if (text.find(part) == std::string::npos) CHECK_EQ(text, part);
  }
}

TEST(out_of_memory_leaves_everything_usable) {
  Memory memory(0, MiB);
  Block* half = memory.allocate(MiB / 2);
  fill(memory, half, 9);
  for (int i = 0; i < 3; i++) CHECK_THROWS(memory.allocate(MiB / 2 + 1), OutOfMemory, "");
  Block* rest = memory.allocate(MiB / 2);
  CHECK_THROWS(memory.allocate(1), OutOfMemory, "0 B free");
  CHECK(filled(memory, half, 9));
  memory.free(half);
  memory.free(rest);
  CHECK(memory.allocate(MiB) != nullptr);
  const MemoryStats stats = memory.stats();
  CHECK_EQ(stats.num_ooms, 4);
  CHECK_EQ(stats.num_alloc_retries, 0);
  CHECK_EQ(stats.allocation.allocated, 3);
  CHECK_EQ(stats.allocated_bytes.current, MiB);
}

TEST(absurd_sizes_are_out_of_memory_too) {
  Memory memory(0, MiB);
  for (size_t bytes : {~size_t{0}, ~size_t{0} - 100, ~size_t{0} - 127, ~size_t{0} / 2, MiB + 1}) {
    CHECK_THROWS(memory.allocate(bytes), OutOfMemory, std::to_string(bytes) + " bytes");
  }
  CHECK(memory.allocate(MiB) != nullptr);
}

TEST(small_cached_blocks_count_in_the_largest_free_range) {
  Memory memory(0, MiB);
  std::vector<Block*> blocks;
  for (int i = 0; i < 1024; i++) blocks.push_back(memory.allocate(1024));
  for (Block* block : blocks) memory.free(block);
  CHECK(oom_text(memory, 2 * MiB).find("largest free range 1.00 MiB") != std::string::npos);
}

// ---- Blocks that queued work holds ------------------------------------------------------------

TEST(a_freed_block_that_queued_work_holds_is_recycled_at_the_last_release) {
  for (const size_t bytes : {size_t{1024}, kLarge}) {
    Memory memory(0, MiB);
    Block* block = memory.allocate(bytes);
    const Address address = block->address;
    memory.retain(block);
    memory.retain(block);
    memory.free(block);
    CHECK_EQ(memory.stats().allocation.current, 0);
    CHECK_EQ(memory.stats().allocated_bytes.current, 0);
    CHECK_EQ(memory.stats().requested_bytes.current, 0);
    CHECK_EQ(memory.stats().active_bytes.current, bytes);
    CHECK_EQ(memory.free_bytes(), MiB - bytes);
    CHECK(memory.allocate(bytes)->address != address);
    memory.empty_cache();
    memory.release(block);
    CHECK(memory.allocate(bytes)->address != address);
    CHECK_EQ(memory.find(address), block);
    memory.release(block);
    CHECK(memory.find(address) == nullptr);
    CHECK_EQ(memory.allocate(bytes)->address, address);
    CHECK_EQ(memory.stats().active_bytes.freed, bytes);
  }
}

TEST(a_block_released_before_it_is_freed_is_recycled_when_freed) {
  Memory memory(0, MiB);
  Block* block = memory.allocate(MiB);
  memory.retain(block);
  memory.release(block);
  CHECK_THROWS(memory.allocate(1), OutOfMemory, "");
  memory.free(block);
  CHECK(memory.allocate(MiB) != nullptr);
}

TEST(a_full_card_asks_for_held_blocks_before_it_gives_up) {
  Memory memory(0, MiB);
  Block* block = memory.allocate(MiB);
  memory.retain(block);
  int calls = 0;
  memory.set_reclaim([&] {
    calls++;
    if (calls == 2) memory.release(block);
  });
  CHECK_THROWS(memory.allocate(128), OutOfMemory, "");
  CHECK_EQ(calls, 0);  // it is allocated: waiting would not help
  memory.free(block);
  CHECK(oom_text(memory, 128).find("1.00 MiB held by queued work") != std::string::npos);
  CHECK_EQ(calls, 1);
  CHECK(memory.allocate(128) != nullptr);
  CHECK_EQ(calls, 2);
  CHECK_EQ(memory.stats().num_alloc_retries, 2);
  CHECK_EQ(memory.stats().num_ooms, 2);
}

TEST(what_is_kept_to_save_time_is_freed_before_an_allocation_fails) {
  Memory memory(0, MiB);
  Block* kept = memory.allocate(128);
  memory.set_last_resort([&] {
    const bool had = kept != nullptr;
    if (had) memory.free(kept);
    kept = nullptr;
    return had;
  });
  Block* block = memory.allocate(MiB);
  CHECK(block != nullptr);
  CHECK(kept == nullptr);
  CHECK_EQ(memory.stats().num_ooms, 0);
  CHECK_THROWS(memory.allocate(128), OutOfMemory, "");
  memory.free(block);
}

TEST(misuse_is_refused_and_does_no_harm) {
  Memory memory(0, MiB), other(1, MiB);
  Block* block = memory.allocate(1000);
  CHECK_THROWS(other.free(block), std::logic_error, "not allocated here");
  CHECK_THROWS(memory.release(block), std::logic_error, "more often than it was retained");
  memory.free(block);
  CHECK_THROWS(memory.free(block), std::logic_error, "0x0059000000000000");
  CHECK_EQ(memory.stats().active_bytes.current, 0);
  CHECK_EQ(memory.stats().allocation.freed, 1);
  CHECK(memory.allocate(MiB) != nullptr);
}

TEST(a_block_of_another_card_goes_back_to_its_own_memory) {
  Memory memory(0, MiB), other(1, MiB);
  Block* block = other.allocate(MiB);
  memory.retain(block);
  other.free(block);
  CHECK_EQ(other.free_bytes(), 0);
  memory.release(block);
  CHECK_EQ(other.free_bytes(), MiB);
  CHECK_EQ(memory.stats().active_bytes.freed, 0);
}

TEST(find_gives_the_block_around_an_address) {
  Memory memory(0, MiB);
  Block* first = memory.allocate(1000);
  Block* second = memory.allocate(kLarge);
  CHECK_EQ(memory.find(first->address), first);
  CHECK_EQ(memory.find(first->address + 1023), first);
  CHECK_EQ(memory.find(first->address + 1024), second);
  CHECK(memory.find(second->address + kLarge) == nullptr);
  CHECK(memory.find(first->address - 1) == nullptr);
  CHECK(memory.find(0) == nullptr);
  memory.free(first);
  CHECK(memory.find(first->address) == nullptr);
  CHECK_EQ(memory.find(second->address), second);
}

// ---- Statistics -------------------------------------------------------------------------------

TEST(statistics_follow_a_worked_example) {
  Memory memory(0, MiB);
  Block* a = memory.allocate(100);   // 128
  Block* b = memory.allocate(1000);  // 1024
  memory.free(a);
  Block* c = memory.allocate(200);  // 256: nothing cached fits
  const MemoryStats s = memory.stats();
  const auto values = [](const Stat& stat) {
    return std::vector<int64_t>{stat.current, stat.peak, stat.allocated, stat.freed};
  };
  CHECK_EQ(values(s.allocation), (std::vector<int64_t>{2, 2, 3, 1}));
  CHECK_EQ(values(s.allocated_bytes), (std::vector<int64_t>{1280, 1280, 1408, 128}));
  CHECK_EQ(values(s.requested_bytes), (std::vector<int64_t>{1200, 1200, 1300, 100}));
  CHECK_EQ(values(s.active_bytes), (std::vector<int64_t>{1280, 1280, 1408, 128}));
  CHECK_EQ(values(s.reserved_bytes), (std::vector<int64_t>{1408, 1408, 1408, 0}));

  memory.free(b);
  memory.reset_peak_stats();
  CHECK_EQ(values(memory.stats().allocated_bytes), (std::vector<int64_t>{256, 256, 1408, 1152}));
  memory.reset_accumulated_stats();
  CHECK_EQ(values(memory.stats().allocated_bytes), (std::vector<int64_t>{256, 256, 0, 0}));
  memory.free(c);
  CHECK_EQ(values(memory.stats().allocated_bytes), (std::vector<int64_t>{0, 256, 0, 256}));
}

TEST(the_summary_is_a_table) {
  Memory memory(2, 2 * MiB);
  Block* block = memory.allocate(MiB + MiB / 2);
  memory.allocate(1000);
  memory.free(block);
  CHECK_THROWS(memory.allocate(3 * MiB), OutOfMemory, "");
  CHECK_EQ(memory.summary(),
           "Spyre card 2: 2.00 MiB memory, 2.00 MiB free; 1 out-of-memory errors, 0 retries\n"
           "|                  |      current |         peak |  total alloc |  total freed |\n"
           "| Allocations      |            1 |            2 |            2 |            1 |\n"
           "| Allocated memory |     1.00 KiB |     1.50 MiB |     1.50 MiB |     1.50 MiB |\n"
           "| Requested memory |       1000 B |     1.50 MiB |     1.50 MiB |     1.50 MiB |\n"
           "| Active memory    |     1.00 KiB |     1.50 MiB |     1.50 MiB |     1.50 MiB |\n"
           "| Reserved memory  |     1.50 MiB |     1.50 MiB |     1.50 MiB |          0 B |\n");
}

TEST(sizes_are_readable) {
  CHECK_EQ(human_size(0), "0 B");
  CHECK_EQ(human_size(1023), "1023 B");
  CHECK_EQ(human_size(1536), "1.50 KiB");
  CHECK_EQ(human_size(128 * GiB), "128.00 GiB");
  CHECK_EQ(human_size(~uint64_t{0}), "16.00 EiB");
}

// ---- Threads ----------------------------------------------------------------------------------

// Blocks also travel between threads through a few shared places, and are freed elsewhere.
TEST(four_threads_with_100000_blocks_never_overlap_and_leak_nothing) {
  constexpr int kThreads = 4, kEach = 25000;
  constexpr size_t capacity = 64 * MiB;
  Memory memory(0, capacity);
  std::array<std::atomic<Block*>, 16> shared{};
  std::atomic<int64_t> requested{0}, allocated{0};
  const auto seed_of = [](const Block* block) {
    return static_cast<unsigned char>(block->requested * 31 + block->address / 128);
  };
  const auto give_back = [&](Block* block) {
    if (!block) return;
    CHECK(filled(memory, block, seed_of(block)));
    memory.free(block);
  };
  const auto work = [&](int thread) {
    std::mt19937 random(thread);
    std::vector<Block*> live(40);
    for (int i = 0; i < kEach; i++) {
      const size_t bytes = random() % 32 ? 1 + random() % 2000 : 1 + random() % 150000;
      Block* block = memory.allocate(bytes);
      requested += bytes;
      allocated += block->size;
      fill(memory, block, seed_of(block));
      CHECK_EQ(memory.find(block->address + block->size - 1), block);
      if (random() % 8 == 0) block = shared[random() % shared.size()].exchange(block);
      if (block && random() % 4 == 0) {  // as queued work does
        memory.retain(block);
        give_back(block);
        memory.release(block);
        continue;
      }
      Block*& place = live[random() % live.size()];
      give_back(std::exchange(place, block));
      if (i % 5000 == 0) memory.empty_cache();
    }
    for (Block* block : live) give_back(block);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  for (auto& place : shared) give_back(place);

  const MemoryStats stats = memory.stats();
  CHECK_EQ(stats.allocation.allocated, kThreads * kEach);
  CHECK_EQ(stats.allocation.freed, kThreads * kEach);
  CHECK_EQ(stats.allocation.current, 0);
  CHECK_EQ(stats.requested_bytes.allocated, requested.load());
  CHECK_EQ(stats.requested_bytes.freed, requested.load());
  CHECK_EQ(stats.allocated_bytes.allocated, allocated.load());
  CHECK_EQ(stats.allocated_bytes.freed, allocated.load());
  CHECK_EQ(stats.active_bytes.allocated, allocated.load());
  CHECK_EQ(stats.active_bytes.freed, allocated.load());
  CHECK_EQ(stats.active_bytes.current, 0);
  CHECK_EQ(memory.free_bytes(), capacity);
  CHECK_EQ(memory.allocate(capacity)->address, base_address(0));
}
