// What running steps on the shadows has in common: sets of lanes, and walks over them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "sanitizer/sanitizer.h"

namespace spyre::card {

inline constexpr uint64_t kZeroTag = 0x5EED0;    // of lanes that do not exist
inline constexpr uint64_t kOpaqueTag = 0x0FA9E;  // of what a scatter may have written
inline constexpr uint64_t kNextStick =
    0xA24BAED4963EE407;                                    // between the tags of one group's sticks
inline constexpr uint64_t kVariance = 0x9FB21C651E98DF25;  // between the tags of mean and variance

// The number of ones at the low end, if there are no others; else -1.
inline int prefix_of(const Bits& bits) {
  const int low = std::countr_one(bits.low), high = std::countr_one(bits.high);
  if (low < 64) return bits.high == 0 && bits.low >> low == 0 ? low : -1;
  return high == 64 || bits.high >> high == 0 ? 64 + high : -1;
}

// Bytes of a stick as lanes of so many bytes: all of them must be there.
inline Bits lanes_of(const Bits& data, int bytes) {
  if (const int prefix = prefix_of(data); prefix >= 0) return Bits::range(0, prefix / bytes);
  Bits lanes;
  for (int lane = 0; lane < kStickBytes / bytes; lane++) {
    if (data.covers(Bits::range(lane * bytes, bytes))) lanes = lanes | Bits::range(lane, 1);
  }
  return lanes;
}

inline Bits bytes_of_lanes(const Bits& lanes, int bytes) {
  if (const int prefix = prefix_of(lanes); prefix >= 0) {
    return Bits::range(0, std::min<int>(prefix * bytes, kStickBytes));
  }
  Bits data;
  for (int lane = 0; lane < kStickBytes / bytes; lane++) {
    if (lanes.has(lane)) data = data | Bits::range(lane * bytes, bytes);
  }
  return data;
}

inline Bits shifted_left(const Bits& bits, int by) {
  if (by == 0) return bits;
  if (by >= 128) return {};
  if (by >= 64) return {0, bits.low << (by - 64)};
  return {bits.low << by, bits.high << by | bits.low >> (64 - by)};
}

inline Bits shifted_right(const Bits& bits, int by) {
  if (by == 0) return bits;
  if (by >= 128) return {};
  if (by >= 64) return {bits.high >> (by - 64), 0};
  return {bits.low >> by | bits.high << (64 - by), bits.high >> by};
}

// Which of 64 columns a lane of a pair of sticks in the arrangement DL16_TO_FP32 holds.
inline int arranged_column(int lane) {
  const int stick = lane / 32, position = lane % 32;
  return position / 4 * 8 + stick * 4 + position % 4;
}

inline Bits arranged(const Bits& lanes, bool widen, int count) {
  Bits result;
  for (int lane = 0; lane < count; lane++) {
    const int block = lane / 64 * 64, column = block + arranged_column(lane % 64);
    const int from = widen ? column : lane, to = widen ? lane : column;
    if (lanes.has(from)) result = result | Bits::range(to, 1);
  }
  return result;
}

// Looked up at every access: in tables.
struct FormatSizes {
  std::array<int, kNumDataFormats> bytes{}, per_stick{};
  FormatSizes() {
    for (int i = 0; i < kNumDataFormats; i++) {
      per_stick[i] = static_cast<int>(elems_per_stick(static_cast<DataFormat>(i)));
      if (per_stick[i] > 0) bytes[i] = static_cast<int>(kStickBytes) / per_stick[i];
    }
  }
};
inline const FormatSizes kSizes;

inline int bytes_per_lane(DataFormat format) { return kSizes.bytes[static_cast<int>(format)]; }
inline int lanes_per_stick(DataFormat format) { return kSizes.per_stick[static_cast<int>(format)]; }

// An index of several dimensions, the last one fastest.
class Counter {
 public:
  Counter(const int64_t* extents, int dims) : extents_(extents, extents + dims), index_(dims) {
    for (int64_t extent : extents_) count_ *= extent;
  }
  int64_t count() const { return count_; }
  int64_t operator[](int dim) const { return index_[dim]; }
  // Gives the dimension that moved on, those after it began again; -1: all did.
  int next() {
    for (int d = static_cast<int>(index_.size()) - 1; d >= 0; d--) {
      if (++index_[d] < extents_[d]) return d;
      index_[d] = 0;
    }
    return -1;
  }
  // For each dimension what a sum over strides grows by when it moves on; last, when all begin
  // again.
  std::vector<int64_t> steps(const std::vector<int64_t>& strides, int first = 0) const {
    std::vector<int64_t> result(index_.size() + 1);
    int64_t back = 0;
    for (size_t d = index_.size(); d-- > 0;) {
      result[d] = strides[first + d] - back;
      back += (extents_[d] - 1) * strides[first + d];
    }
    result.back() = -back;
    return result;
  }
  int64_t dot(const std::vector<int64_t>& strides, int first = 0) const {
    int64_t sum = 0;
    for (size_t d = 0; d < index_.size(); d++) sum += index_[d] * strides[first + d];
    return sum;
  }

 private:
  std::vector<int64_t> extents_, index_;
  int64_t count_ = 1;
};

// The bytes from the first to the last place that a core walks over, in relation to its start.
inline std::pair<int64_t, int64_t> hull(const int64_t* extents, const std::vector<int64_t>& strides,
                                        int dims) {
  int64_t low = 0, high = kStickBytes;
  for (int d = 0; d < dims; d++) {
    if (extents[d] == 0) return {0, 0};
    const int64_t last = (extents[d] - 1) * strides[d];
    (last < 0 ? low : high) += last;
  }
  return {low, high};
}

}  // namespace spyre::card
