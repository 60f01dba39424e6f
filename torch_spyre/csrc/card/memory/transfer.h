// A copy between a mapped card storage and strided memory, planned and run: the common part of the
// copies to, from and on the card.
#pragma once

#include <algorithm>

#include "memory/box_copy.h"
#include "threads/thread_pool.h"

namespace spyre::card {

// A storage on the card whose addresses have been worked out.
struct MappedCard {
  AddressMap map;
  std::byte* base;
  int64_t elem_bytes;
  const Placement* placement;  // nullptr: untiled
};
MappedCard map_card(const CardSide& card);

// Memory that is strided in the ordinary way: of the host, or untiled on the card.
struct Strided {
  std::byte* data;
  const Dims& strides;  // in elements
  int64_t elem_bytes;
  Conversion conversion;
};

// How a copy of so many bytes should be written.
Stores stores_for(int64_t bytes);

// The views are checked already and not empty. `pool` may be nullptr: this thread alone.
bool write_card(const MappedCard& card, const View& view, const Strided& from, Stores stores,
                ThreadPool* pool);
void read_card(const MappedCard& card, const View& view, const Strided& to, Stores stores,
               ThreadPool* pool);

// copy_on_card with storages that are mapped and views that are checked already.
void copy_mapped(const MappedCard& src, const View& src_view, const MappedCard& dst,
                 const View& dst_view, ThreadPool* pool);

int64_t num_elements(const View& view);

// Below this many elements threads cost more than they bring.
constexpr int64_t kSerialElements = 64 * 1024;

// Calls work(first, last) for ranges that make up [0, units), on the pool when it is worth it.
template <class Work>
void share_units(int64_t units, int64_t elements, ThreadPool* pool, Work&& work) {
  constexpr int kSlicesPerThread = 4;
  if (pool == nullptr || elements < kSerialElements || units == 1 || pool->threads() == 1) {
    return work(int64_t{0}, units);
  }
  const int slices = static_cast<int>(std::min<int64_t>(units, kSlicesPerThread * pool->threads()));
  pool->run(slices, [&](int i) { work(units * i / slices, units * (i + 1) / slices); });
}

}  // namespace spyre::card
