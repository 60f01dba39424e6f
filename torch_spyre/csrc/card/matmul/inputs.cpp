#include "matmul/inputs.h"

#include <algorithm>
#include <array>
#include <bit>

#include "tile/operand.h"

namespace spyre::card {
namespace {

struct FloatOfE4m3 {
  FloatOfE4m3() {
    for (int code = 0; code < 256; ++code) {
      const std::byte byte{static_cast<uint8_t>(code)};
      values[code] =
          std::bit_cast<float>(load_element(DataFormat::SEN143_FP8, Numerics::DLFLOAT16, &byte));
    }
  }
  std::array<float, 256> values;
};

bool unpack_e4m3(std::byte* dst, int64_t dst_pitch, const std::byte* src, int64_t src_pitch,
                 int64_t rows, int64_t cols, Stores) {
  static const FloatOfE4m3 table;
  for (int64_t r = 0; r < rows; ++r) {
    float* to = reinterpret_cast<float*>(dst + r * dst_pitch);
    const std::byte* from = src + r * src_pitch;
    for (int64_t c = 0; c < cols; ++c) to[c] = table.values[std::to_integer<uint8_t>(from[c])];
  }
  return true;
}

ConvertRows unpacker(DataFormat format, Numerics numerics, const ConvertTable& table) {
  if (format == DataFormat::SEN143_FP8) return unpack_e4m3;
  if (format == DataFormat::BFLOAT16) return table.to_card[int(Conversion::BF16_F32)];
  if (format == DataFormat::IEEE_FP32) return table.from_card[int(Conversion::COPY_4)];
  return table.from_card[int(is_dlfloat16(format, numerics) ? Conversion::F32_DLF16
                                                            : Conversion::F32_HALF)];
}

// Formats that are rare have no kernels of their own: they are unpacked by `unpacker`, whatever the
// number of rows.
MatmulKernels::Format kernels_for(DataFormat format, Numerics numerics,
                                  const MatmulKernels& kernels) {
  if (format == DataFormat::IEEE_FP32) return kernels.single;
  if (format == DataFormat::SEN143_FP8 || format == DataFormat::BFLOAT16) {
    return {nullptr, nullptr, nullptr, kernels.single.panels, nullptr};
  }
  return is_dlfloat16(format, numerics) ? kernels.dlfloat16 : kernels.half;
}

}  // namespace

MatmulInputs::MatmulInputs(const MatmulStep& step, const StepHead& head, const RunContext& context,
                           Simd simd)
    : step_(step),
      name_(head.name),
      unpack_x_(unpacker(step.x.format, context.numerics, convert_table(simd))),
      unpack_y_(unpacker(step.y.format, context.numerics, convert_table(simd))),
      x_kernels_(kernels_for(step.x.format, context.numerics, matmul_kernels(simd))),
      y_kernels_(kernels_for(step.y.format, context.numerics, matmul_kernels(simd))),
      x_(step.x, head, context),
      y_(step.y, head, context) {}

StickRow MatmulInputs::stick_row(std::byte* begin, const MatmulOperand& operand) const {
  const StickRow row(begin, operand);
  if (!row.has_whole_panels()) {
    throw ProgramError("step '" + name_ +
                       "': an operand begins inside a stick, at no multiple of " +
                       std::to_string(kPanel) + " elements");
  }
  return row;
}

// In the order in which they lie in memory: entries may be batches whose rows alternate.
void MatmulInputs::unpack_rows(const MatmulStep::RowList& list, size_t part, const Range& range,
                               float* to, int64_t step) const {
  const int64_t last = range.row + range.rows, stride = step_.x.row_stride;
  int64_t begin = 0;  // of the entry
  for (size_t i = 0; i < list.rows.size() && begin < last;) {
    const int64_t count = list.rows[i].count;
    const int64_t from = std::max(range.row, begin), end = std::min(last, begin + count);
    std::byte* row = x_[list.rows[i].x[part]] + (from - begin) * stride;
    float* rows_to = to + (from - range.row) * step;
    const int64_t entries =
        from == begin && end == begin + count ? alike(list, part, i, (last - begin) / count) : 1;
    if (entries > 1) {
      const int64_t apart = x_[list.rows[i + 1].x[part]] - row;
      for (int64_t r = 0; r < count; ++r) {
        unpack_columns(stick_row(row + r * stride, step_.x), apart,
                       {0, entries, range.column, range.columns}, rows_to + r * step, count * step);
      }
    } else if (from < end) {
      unpack_columns(stick_row(row, step_.x), stride, {0, end - from, range.column, range.columns},
                     rows_to, step);
    }
    begin += entries * count;
    i += entries;
  }
}

// How many entries, from this one on, are of the same size and alternate in memory row by row.
int64_t MatmulInputs::alike(const MatmulStep::RowList& list, size_t part, size_t entry,
                            int64_t most) const {
  const int64_t end = std::min<int64_t>(most, static_cast<int64_t>(list.rows.size() - entry));
  if (end < 2) return 1;
  const auto at = [&](int64_t i) { return x_[list.rows[entry + i].x[part]]; };
  const int64_t apart = at(1) - at(0);
  if (apart <= 0 || apart >= step_.x.row_stride || apart % kStickBytes != 0) return 1;
  int64_t count = 1;
  while (count < end && list.rows[entry + count].count == list.rows[entry].count &&
         at(count) - at(0) == count * apart) {
    ++count;
  }
  return count;
}

void MatmulInputs::unpack_columns(const StickRow& x, int64_t stride, const Range& range, float* to,
                                  int64_t step) const {
  for (int64_t done = 0; done < range.columns;) {
    const int64_t at = range.column + done;
    const int64_t some = std::min(x.room(at), range.columns - done);
    if (x_kernels_.rows != nullptr) {
      x_kernels_.rows(x.at(at), stride, to + done, step, range.rows, some);
    } else {
      unpack_x_(reinterpret_cast<std::byte*>(to + done), step * int64_t{sizeof(float)}, x.at(at),
                stride, range.rows, some, Stores::CACHED);
    }
    done += some;
  }
}

void MatmulInputs::unpack_panels(const StickRow& y, const Range& range, float* to) const {
  for (int64_t n = 0; n < range.columns;) {
    const std::byte* from = y.at(range.column + n) + range.row * step_.y.row_stride;
    const int64_t some = std::min(range.columns - n, y.room(range.column + n));
    if (y_kernels_.unpack != nullptr) {
      y_kernels_.unpack(from, step_.y.row_stride, to + n * range.rows, some, range.rows);
      n += some;
    } else {
      unpack_y_(reinterpret_cast<std::byte*>(to + n * range.rows), kPanel * int64_t{sizeof(float)},
                from, step_.y.row_stride, range.rows, kPanel, Stores::CACHED);
      n += kPanel;
    }
  }
}

void MatmulInputs::multiply_fresh(const StickRow& y, const Range& range, const Factors& factors,
                                  float* panels) const {
  const auto& [a, lda, c, ldc, rows, continuation] = factors;
  if (y_kernels_.fresh != nullptr && range.columns <= y.room(range.column)) {
    y_kernels_.fresh(a, lda, y.at(range.column) + range.row * step_.y.row_stride,
                     step_.y.row_stride, panels, c, ldc, rows, range.columns, range.rows,
                     continuation);
    return;
  }
  unpack_panels(y, range, panels);
  y_kernels_.panels(a, lda, panels, c, ldc, rows, range.columns, range.rows, continuation);
}

}  // namespace spyre::card
