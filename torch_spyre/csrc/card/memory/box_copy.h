// Moves one box of a copy between the card and host memory, converting its elements.
#pragma once

#include "memory/box_walker.h"
#include "numerics/convert.h"

namespace spyre::card {

struct BoxCopy {
  const ConvertTable& table;
  Conversion conversion;
  const CopyPlan& plan;
  std::byte* card;                 // device element 0
  std::byte* host;                 // element (0, 0, ...) of the view
  int64_t card_bytes, host_bytes;  // of an element
  Stores stores;                   // STREAM also says that the copy is large

  bool to_card(const Box& box) const;  // false: a value did not fit
  void from_card(const Box& box) const;
};

// `count` elements of 1, 2, 4, 8 or 16 bytes; strides in bytes.
void copy_strided(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                  int64_t count, int64_t elem_bytes);

}  // namespace spyre::card
