// The loops of one copy between strided memory and tiled card memory.
//
// In: an AddressMap, the view and the strides of the other side. Out: a CopyPlan: two axes whose
// product is cut into boxes that are affine on both sides, and the axes around them. The view's
// own dimensions do not matter: they are merged and split again where the layout wants it.
//
// Example: (512, 240) row-major float16 into [4, 512, 64]/[64, 240, 1]: rows of 16 x columns, where
// the columns are runs of 64, 64, 64 and 48 elements. The boxes are then 16x64 and 16x48.
#pragma once

#include "memory/address_map.h"
#include "memory/dma.h"

namespace spyre::card {

// Indices 0 ... size-1 of a loop; each adds to the storage element, the device element and the
// element of the other side.
struct Axis {
  int64_t size = 1;
  int64_t host = 0;   // elements of the other side per index
  int64_t start = 0;  // storage element of index 0: this axis' share of the view's offset
  // On the card. A step of 0 with a device step is a broadcast device axis that is filled.
  Stepping stepping = {0, 0, 0};
};
using Axes = InlineVector<Axis, kMaxCopyDims>;

enum class BoxForm : int8_t {
  ROWS,       // columns are contiguous on both sides
  TRANSPOSE,  // columns are contiguous on the card, rows on the other side
  STRIDED,    // anything else
};

struct CopyPlan {
  BoxForm form = BoxForm::STRIDED;
  // The device element is the sum of what the axes say. Otherwise (a view that crosses the layout's
  // axes) each row is found from its storage element, and `row` is a single one.
  bool separable = true;
  int64_t start = 0;     // the part of the view's offset that no axis has
  int64_t elements = 1;  // of the boxes, all together
  Axes outer;            // slowest first
  Axis row, col;
  int64_t row_block = 1, col_block = 1;  // the largest box

  int64_t row_blocks() const { return (row.size + row_block - 1) / row_block; }
  int64_t col_blocks() const { return (col.size + col_block - 1) / col_block; }
  int64_t units() const;  // pieces of work: one block of rows and columns at one outer index
};

enum class Replicas : int8_t { FILL_ALL, FIRST_ONLY };

// `strides` are those of the other side. All elements of the view must have a place in the map, and
// there is at least one. `card_bytes` is the size of an element on the card.
CopyPlan make_copy_plan(const AddressMap& map, const View& view, const Dims& strides,
                        Replicas replicas, int64_t card_bytes);

// Throws std::invalid_argument when an element of the view is not one of the placed elements.
void check_view(const AddressMap& map, const View& view);

}  // namespace spyre::card
