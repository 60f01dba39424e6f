// How the depth of a product and its rows are cut into blocks, and what room these take as float32.
//
// Example: MatmulRoom room(false); rows.get(count * room.row_end(1536)) is room for `count` rows in
// four blocks of depth; the second one begins at count * room.row_at(384, 384).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "matmul/kernels.h"
#include "matmul/winograd_pairs.h"

namespace spyre::card {

// A panel of y, kDepthBlock x 16 floats, stays in the L1 cache, a strip of x and the panels of a
// tile in the L2 cache.
constexpr int64_t kWholeDepth = 512;  // up to which depth is one block
constexpr int64_t kDepthBlock = 384;
constexpr int64_t kShallowDepth = 64;       // up to which a strip is in the L1 cache, too
constexpr int64_t kStripFloats = 36 << 10;  // of x
constexpr int64_t kMostStripRows = 96;
constexpr int64_t kLeastStripRows = 48;
constexpr int64_t kStripStep = 24;  // rows; whole blocks of any kernel

inline int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
inline int64_t pieces_of(int64_t value, int64_t piece) { return (value + piece - 1) / piece; }

// Width of the blocks of a depth, whole panels; the last one may be smaller.
inline int64_t depth_block(int64_t depth) {
  const int64_t blocks = depth <= kWholeDepth ? 1 : pieces_of(depth, kDepthBlock);
  return round_up(std::max<int64_t>(pieces_of(depth, blocks), 1), kPanel);
}

inline int64_t strip_rows(int64_t depth_block) {
  if (depth_block <= kShallowDepth) return kLeastStripRows;
  const int64_t rows = kStripFloats / depth_block / kStripStep * kStripStep;
  return std::clamp(rows, kLeastStripRows, kMostStripRows);
}

// Floats. Pairs keep what they know of rows and panels after them, in each block of depth.
class MatmulRoom {
 public:
  explicit MatmulRoom(bool pairs) : pairs_(pairs) {}

  int64_t row(int64_t width) const { return width + (pairs_ ? kRowFacts : 0); }
  int64_t panel(int64_t depth) const { return depth + (pairs_ ? kPanelFacts : 0); }  // of a column
  // Where the block of depth at k begins, blocks of one row or column being `step` deep.
  int64_t row_at(int64_t k, int64_t step) const { return k + pieces_of(k, step) * row(0); }
  int64_t panel_at(int64_t k, int64_t step) const { return k + pieces_of(k, step) * panel(0); }
  // Of all blocks.
  int64_t row_end(int64_t depth) const {
    return row_at(round_up(depth, kPanel), depth_block(depth));
  }
  int64_t panel_end(int64_t depth) const { return panel_at(depth, depth_block(depth)); }
  // What kernels may read after the last row.
  int64_t behind(int64_t width) const { return pairs_ ? kPairRows * row(width) : 0; }
  int64_t micro_rows() const { return pairs_ ? kPairRows : kMicroRows; }

 private:
  const bool pairs_;
};

// Memory of a thread that is kept from one step to the next, so that its pages are touched once.
class Scratch {
 public:
  float* get(int64_t floats) {
    if (floats > size_) grow(floats);
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(float* data) const { ::operator delete(data, kAlignment); }
  };

  void grow(int64_t floats);

  std::unique_ptr<float, Free> data_;
  int64_t size_ = 0;
};

}  // namespace spyre::card
