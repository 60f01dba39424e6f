// Copies between strided host memory and tiled card memory, and between tiled memories.
//
// `View` selects elements of a storage (offset, sizes, strides in logical elements of the storage,
// as a PyTorch tensor does); the Placement of that storage says where they lie on the card. Only
// the selected elements are touched: padding and all other elements keep their bytes.
// Views may be any: permuted, sliced, expanded (stride 0, reading only), crossing the dimensions
// the layout was made for (a flattened padded matrix), overlapping. A view element that the
// placement does not place (in a gap of its strides, or beyond) throws std::invalid_argument;
// nothing is copied then. Placements are trusted: they must have passed check_placement.
#pragma once

#include <cstdint>

#include "memory/layout.h"
#include "numerics/formats.h"
#include "threads/thread_pool.h"

namespace spyre::card {

struct View {
  Dims sizes;
  Dims strides;
  int64_t offset = 0;
};

// A storage on the card as the copy engines see it.
struct CardSide {
  std::byte* base;             // host mapping of the storage's first byte (Memory::host)
  const Placement* placement;  // nullptr: untiled, elements lie one after another
  // Of an untiled element; 1, 2, 4, 8 or 16. The host type must then be RAW or of this size.
  int64_t elem_bytes;
};

struct HostSide {
  void* data;  // element (0, 0, ...) of the view
  HostType type;
  Dims strides;  // in host elements, same rank as the view
};

// Is told of each copy before it is made; may throw, and then nothing is copied.
class CopyObserver {
 public:
  virtual ~CopyObserver() = default;
  virtual void host_writes(const CardSide& card, const View& view) = 0;
  virtual void host_reads(const CardSide& card, const View& view) = 0;
  virtual void card_copies(const CardSide& from, const View& from_view, const CardSide& to,
                           const View& to_view) = 0;
};
// Of all copies in the process; null, as at the start, for none. Outlives the copies under way.
void set_copy_observer(CopyObserver* observer);
CopyObserver* copy_observer();

// False when some 64-bit value does not fit the 32-bit format of the card; the copy is then
// incomplete or truncated and the caller must choose another format. Never false for other pairs.
// Throws std::invalid_argument for a host type / device format pair that has no conversion.
[[nodiscard]] bool copy_to_card(const CardSide& card, const View& view, const HostSide& host,
                                Numerics numerics, ThreadPool& pool);
void copy_from_card(const CardSide& card, const View& view, const HostSide& host, Numerics numerics,
                    ThreadPool& pool);
// Both views have the same sizes; both sides have elements of the same format (bytes are moved).
void copy_on_card(const CardSide& src, const View& src_view, const CardSide& dst,
                  const View& dst_view, ThreadPool& pool);

// Pairs that copy_to_card and copy_from_card convert directly.
bool has_conversion(HostType type, DataFormat format);

}  // namespace spyre::card
