#include "memory/box_copy.h"

#include <algorithm>
#include <cstring>

namespace spyre::card {
namespace {

constexpr int64_t kTile = 64;  // of a transpose: a stick of 16-bit elements
constexpr int64_t kMaxTileBytes = kTile * kTile * 4;
constexpr int64_t kChunk = 256;  // elements of a strided row that are converted together
constexpr int64_t kMaxElemBytes = 16;

template <class T>
void copy_each(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
               int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(dst + i * dst_stride, src + i * src_stride, sizeof(T));
  }
}

struct Bytes16 {
  std::byte bytes[16];
};

TransposeBlock transpose_of(const ConvertTable& table, int64_t elem_bytes) {
  return elem_bytes == 1   ? table.transpose_1
         : elem_bytes == 2 ? table.transpose_2
                           : table.transpose_4;
}

bool is_copy(Conversion conversion) { return conversion <= Conversion::COPY_16; }

// Byte strides of a box on both sides.
struct Pitches {
  explicit Pitches(const BoxCopy& copy)
      : host_row(copy.plan.row.host * copy.host_bytes),
        host_col(copy.plan.col.host * copy.host_bytes),
        card_row(copy.plan.row.stepping.device_step * copy.card_bytes),
        card_col(copy.plan.col.stepping.device_step * copy.card_bytes) {}
  int64_t host_row, host_col, card_row, card_col;
};

template <class Visit>
void for_each_tile(const Box& box, Visit&& visit) {
  for (int64_t c = 0; c < box.cols; c += kTile) {
    for (int64_t r = 0; r < box.rows; r += kTile) {
      visit(r, c, std::min(kTile, box.rows - r), std::min(kTile, box.cols - c));
    }
  }
}

template <class Visit>
void for_each_chunk(const Box& box, Visit&& visit) {
  for (int64_t r = 0; r < box.rows; ++r) {
    for (int64_t c = 0; c < box.cols; c += kChunk) visit(r, c, std::min(kChunk, box.cols - c));
  }
}

// For what comes next but lies elsewhere, where processors do not look ahead by themselves. Into
// L2: at a pitch of a power of two the rows would push each other out of L1.
void prefetch_rows(const std::byte* first, int64_t pitch, int64_t rows, int64_t row_bytes) {
  constexpr int64_t kLineBytes = 64;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < row_bytes; i += kLineBytes) {
      __builtin_prefetch(first + r * pitch + i, /*rw=*/0, /*locality=*/2);
    }
  }
}

// A transpose converts in the direction in which the host is contiguous, so that host memory is
// touched in whole cache lines: rows of the tile in between are the box's columns.

bool transpose_to_card(const BoxCopy& copy, const Box& box, std::byte* card,
                       const std::byte* host) {
  const Pitches pitch(copy);
  const ConvertRows convert = copy.table.to_card[static_cast<int>(copy.conversion)];
  const TransposeBlock transpose = transpose_of(copy.table, copy.card_bytes);
  const ConvertRows copy_rows = copy.table.to_card[static_cast<int>(copy_of(copy.card_bytes))];
  const int64_t tile_pitch = kTile * copy.card_bytes;
  alignas(64) std::byte tile[kMaxTileBytes], turned[kMaxTileBytes];
  bool fits = true;
  for_each_tile(box, [&](int64_t r, int64_t c, int64_t rows, int64_t cols) {
    if (r + kTile < box.rows) {
      prefetch_rows(host + (r + kTile) * pitch.host_row + c * pitch.host_col, pitch.host_col, cols,
                    rows * copy.host_bytes);
    }
    fits &= convert(tile, tile_pitch, host + r * pitch.host_row + c * pitch.host_col,
                    pitch.host_col, cols, rows, Stores::CACHED);
    std::byte* to = card + r * pitch.card_row + c * pitch.card_col;
    if (copy.stores == Stores::CACHED) {
      transpose(to, pitch.card_row, tile, tile_pitch, cols, rows);
    } else {  // streams want whole sticks
      transpose(turned, tile_pitch, tile, tile_pitch, cols, rows);
      copy_rows(to, pitch.card_row, turned, tile_pitch, rows, cols, Stores::STREAM);
    }
  });
  return fits;
}

void transpose_from_card(const BoxCopy& copy, const Box& box, const std::byte* card,
                         std::byte* host) {
  const Pitches pitch(copy);
  const ConvertRows convert = copy.table.from_card[static_cast<int>(copy.conversion)];
  const TransposeBlock transpose = transpose_of(copy.table, copy.card_bytes);
  const int64_t tile_pitch = kTile * copy.card_bytes;
  alignas(64) std::byte tile[kMaxTileBytes];
  for_each_tile(box, [&](int64_t r, int64_t c, int64_t rows, int64_t cols) {
    if (r + kTile < box.rows) {
      prefetch_rows(card + (r + kTile) * pitch.card_row + c * pitch.card_col, pitch.card_row, rows,
                    cols * copy.card_bytes);
    }
    transpose(tile, tile_pitch, card + r * pitch.card_row + c * pitch.card_col, pitch.card_row,
              rows, cols);
    convert(host + r * pitch.host_row + c * pitch.host_col, pitch.host_col, tile, tile_pitch, cols,
            rows, copy.stores);
  });
}

bool strided_to_card(const BoxCopy& copy, const Box& box, std::byte* card, const std::byte* host) {
  const Pitches pitch(copy);
  const ConvertRows convert = copy.table.to_card[static_cast<int>(copy.conversion)];
  alignas(64) std::byte in[kChunk * kMaxElemBytes], out[kChunk * kMaxElemBytes];
  bool fits = true;
  for_each_chunk(box, [&](int64_t r, int64_t c, int64_t cols) {
    const std::byte* from = host + r * pitch.host_row + c * pitch.host_col;
    std::byte* to = card + r * pitch.card_row + c * pitch.card_col;
    if (is_copy(copy.conversion)) {
      return copy_strided(to, pitch.card_col, from, pitch.host_col, cols, copy.card_bytes);
    }
    copy_strided(in, copy.host_bytes, from, pitch.host_col, cols, copy.host_bytes);
    fits &= convert(out, 0, in, 0, 1, cols, Stores::CACHED);
    copy_strided(to, pitch.card_col, out, copy.card_bytes, cols, copy.card_bytes);
  });
  return fits;
}

void strided_from_card(const BoxCopy& copy, const Box& box, const std::byte* card,
                       std::byte* host) {
  const Pitches pitch(copy);
  const ConvertRows convert = copy.table.from_card[static_cast<int>(copy.conversion)];
  alignas(64) std::byte in[kChunk * kMaxElemBytes], out[kChunk * kMaxElemBytes];
  for_each_chunk(box, [&](int64_t r, int64_t c, int64_t cols) {
    const std::byte* from = card + r * pitch.card_row + c * pitch.card_col;
    std::byte* to = host + r * pitch.host_row + c * pitch.host_col;
    if (is_copy(copy.conversion)) {
      return copy_strided(to, pitch.host_col, from, pitch.card_col, cols, copy.card_bytes);
    }
    copy_strided(in, copy.card_bytes, from, pitch.card_col, cols, copy.card_bytes);
    convert(out, 0, in, 0, 1, cols, Stores::CACHED);
    copy_strided(to, pitch.host_col, out, copy.host_bytes, cols, copy.host_bytes);
  });
}

}  // namespace

bool BoxCopy::to_card(const Box& box) const {
  std::byte* to = card + box.device * card_bytes;
  const std::byte* from = host + box.host * host_bytes;
  switch (plan.form) {
    case BoxForm::ROWS:
      return table.to_card[static_cast<int>(conversion)](
          to, plan.row.stepping.device_step * card_bytes, from, plan.row.host * host_bytes,
          box.rows, box.cols, stores);
    case BoxForm::TRANSPOSE:
      return transpose_to_card(*this, box, to, from);
    case BoxForm::STRIDED:
      return strided_to_card(*this, box, to, from);
  }
  return true;
}

void BoxCopy::from_card(const Box& box) const {
  const std::byte* from = card + box.device * card_bytes;
  std::byte* to = host + box.host * host_bytes;
  switch (plan.form) {
    case BoxForm::ROWS:
      if (stores == Stores::STREAM && box.next >= 0) {
        prefetch_rows(card + box.next * card_bytes, plan.row.stepping.device_step * card_bytes,
                      box.rows, std::min(box.cols, kTile) * card_bytes);
      }
      // What does not fit the host type is truncated, as PyTorch does.
      (void)table.from_card[static_cast<int>(conversion)](
          to, plan.row.host * host_bytes, from, plan.row.stepping.device_step * card_bytes,
          box.rows, box.cols, stores);
      break;
    case BoxForm::TRANSPOSE:
      transpose_from_card(*this, box, from, to);
      break;
    case BoxForm::STRIDED:
      strided_from_card(*this, box, from, to);
      break;
  }
}

void copy_strided(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                  int64_t count, int64_t elem_bytes) {
  switch (elem_bytes) {
    case 1:
      return copy_each<uint8_t>(dst, dst_stride, src, src_stride, count);
    case 2:
      return copy_each<uint16_t>(dst, dst_stride, src, src_stride, count);
    case 4:
      return copy_each<uint32_t>(dst, dst_stride, src, src_stride, count);
    case 8:
      return copy_each<uint64_t>(dst, dst_stride, src, src_stride, count);
    default:
      return copy_each<Bytes16>(dst, dst_stride, src, src_stride, count);
  }
}

}  // namespace spyre::card
