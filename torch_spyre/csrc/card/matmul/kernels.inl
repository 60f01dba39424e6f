// The kernels of matmul/kernels.h, written once against numerics/simd.h and compiled once for each
// of its forms. Included by matmul/avx2.cpp (which sets the target before) and matmul/portable.cpp.
//
// Products and sums are never separate here, so there is nothing a compiler could contract.
#include <cstddef>
#include <cstdint>

#include "matmul/kernels.h"
#include "numerics/dlfloat16.h"
#include "numerics/simd.h"

namespace spyre::card::SPYRE_SIMD_NAMESPACE {
namespace {

// Internal linkage throughout: an AVX2 instance must never be merged with a portable one.

constexpr int kVector = 8;

SPYRE_SIMD_INLINE F32x8 splat(float v) { return F32x8{v, v, v, v, v, v, v, v}; }

SPYRE_SIMD_INLINE F32x8 one_nan(const F32x8& value) {
  const I32x8 nan = I32x8{} + 0x7fc00000;
  return select(value != value, bits<F32x8>(nan), value);
}

// ------------------------------------------------------------------------------------ elements

// How 16 elements become floats, in an order of lanes that `swap` puts right (and back). The quick
// form may be wrong for rare elements; it takes note of what it has seen, and `was_right` says
// whether all of that was ordinary. If not, the work is done again with `unpack_any`.

struct Nothing {};

struct FloatElements {
  using Seen = Nothing;
  static constexpr int64_t kBytes = 4;
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack(const std::byte* from, Seen&) {
    return {load<F32x8>(from), load<F32x8>(from + 32)};
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack_any(const std::byte* from) {
    return {load<F32x8>(from), load<F32x8>(from + 32)};
  }
  SPYRE_SIMD_INLINE static bool was_right(const Seen&) { return true; }
  SPYRE_SIMD_INLINE static Pair<F32x8> swap(const Pair<F32x8>& pair) { return pair; }
};

struct HalfElements {
  using Seen = Nothing;
  static constexpr int64_t kBytes = 2;
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack(const std::byte* from, Seen&) {
    return half_to_float(load<U16x16>(from));
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack_any(const std::byte* from) {
    return half_to_float(load<U16x16>(from));
  }
  SPYRE_SIMD_INLINE static bool was_right(const Seen&) { return true; }
  SPYRE_SIMD_INLINE static Pair<F32x8> swap(const Pair<F32x8>& pair) { return pair; }
};

// As decode in numerics/convert.inl; the quick form does not know infinity and NaN.
struct Dlfloat16Elements {
  using Seen = I16x16;  // the largest magnitudes
  static constexpr int64_t kBytes = 2;

  SPYRE_SIMD_INLINE static I16x16 magnitude(const I16x16& code) {
    return code & static_cast<int16_t>(Dlfloat16::kMagnitude);
  }
  // Lower and upper half of the float32. The sign is shifted in; the two bits below it must not be.
  SPYRE_SIMD_INLINE static Pair<I16x16> halves(const I16x16& code) {
    static_assert(Dlfloat16::kShift == 14);
    const I16x16 rebias = I16x16{} + int16_t{Dlfloat16::kRebias >> 16};
    const Pair<I16x16> shifted = shift_apart(code);
    return {shifted.first, (shifted.second & static_cast<int16_t>(0x9fff)) +
                               keep_at_numbers(rebias, magnitude(code))};
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> join_floats(const I16x16& low, const I16x16& high) {
    const Pair<U32x8> joined = join_swapped(bits<U16x16>(low), bits<U16x16>(high));
    return {bits<F32x8>(joined.first), bits<F32x8>(joined.second)};
  }

  SPYRE_SIMD_INLINE static Pair<F32x8> unpack(const std::byte* from, Seen& seen) {
    const I16x16 code = load<I16x16>(from);
    seen = max(seen, magnitude(code));
    const Pair<I16x16> half = halves(code);
    return join_floats(half.first, half.second);
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack_any(const std::byte* from) {
    const I16x16 code = load<I16x16>(from);
    const I16x16 finite = magnitude(code) < int16_t{Dlfloat16::kInfinity};
    const I16x16 nan = magnitude(code) == int16_t{Dlfloat16::kNan};
    const I16x16 special = (code & static_cast<int16_t>(Dlfloat16::kSign)) | int16_t{0x7f80};
    const Pair<I16x16> half = halves(code);
    const I16x16 high = (half.second & finite) | (special & ~finite) | (nan & int16_t{0x40});
    return join_floats(half.first & finite, high);
  }
  SPYRE_SIMD_INLINE static bool was_right(const Seen& seen) {
    return all(seen < int16_t{Dlfloat16::kInfinity});
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> swap(const Pair<F32x8>& pair) { return swap_order(pair); }
};

template <class Elements, bool kAny>
SPYRE_SIMD_INLINE Pair<F32x8> unpack_group(const std::byte* from, typename Elements::Seen& seen) {
  if constexpr (kAny) return Elements::unpack_any(from);
  return Elements::unpack(from, seen);
}

// ------------------------------------------------------------------------------ unpacked panels

template <class Elements, int kRows>
void multiply_rows(const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                   int64_t depth, Continuation continuation) {
  F32x8 sum[kRows][2];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = continuation.first ? F32x8{} : load<F32x8>(c + i * ldc);
    sum[i][1] = continuation.first ? F32x8{} : load<F32x8>(c + i * ldc + kVector);
  }
  for (int64_t k = 0; k < depth; ++k) {
    const F32x8 b0 = load<F32x8>(b + k * kPanel), b1 = load<F32x8>(b + k * kPanel + kVector);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const F32x8 x = splat(a[i * lda + k]);
      sum[i][0] = fma(x, b0, sum[i][0]);
      sum[i][1] = fma(x, b1, sum[i][1]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    if (continuation.last) {
      const Pair<F32x8> ordered = Elements::swap({sum[i][0], sum[i][1]});
      sum[i][0] = one_nan(ordered.first);
      sum[i][1] = one_nan(ordered.second);
    }
    store(c + i * ldc, sum[i][0]);
    store(c + i * ldc + kVector, sum[i][1]);
  }
}

template <class Elements>
void multiply_panel(const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                    int64_t rows, int64_t depth, Continuation continuation) {
  while (rows > 0) {
    // 6 + 5 + 5 instead of 6 + 6 + 4: few rows have too few sums to keep the processor busy.
    const int64_t pieces = (rows + kMicroRows - 1) / kMicroRows;
    const int64_t some = (rows + pieces - 1) / pieces;
    switch (some) {
      case 1:
        multiply_rows<Elements, 1>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 2:
        multiply_rows<Elements, 2>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 3:
        multiply_rows<Elements, 3>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 4:
        multiply_rows<Elements, 4>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 5:
        multiply_rows<Elements, 5>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 6:
        multiply_rows<Elements, 6>(a, lda, b, c, ldc, depth, continuation);
        break;
    }
    a += some * lda;
    c += some * ldc;
    rows -= some;
  }
}

template <class Elements>
void multiply_panels(const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                     int64_t rows, int64_t columns, int64_t depth, Continuation continuation) {
  for (int64_t n = 0; n < columns; n += kPanel) {
    multiply_panel<Elements>(a, lda, b + n * depth, c + n, ldc, rows, depth, continuation);
  }
}

// ------------------------------------------------------------------------------------- unpacking

template <class Elements, int kGroups, bool kOrdered, bool kAny>
SPYRE_SIMD_INLINE bool unpack_groups(const std::byte* from, int64_t stride, float* to, int64_t step,
                                     int64_t group_step, int64_t rows) {
  typename Elements::Seen seen{};
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      Pair<F32x8> lanes =
          unpack_group<Elements, kAny>(from + r * stride + g * kPanel * Elements::kBytes, seen);
      if (kOrdered) lanes = Elements::swap(lanes);
      store(to + r * step + g * group_step, lanes.first);
      store(to + r * step + g * group_step + kVector, lanes.second);
    }
  }
  return kAny || Elements::was_right(seen);
}

// Groups of 16 elements of each row; rows become `step` floats apart, groups `group_step`.
template <class Elements, int kGroups, bool kOrdered>
SPYRE_SIMD_INLINE void unpack_block(const std::byte* from, int64_t stride, float* to, int64_t step,
                                    int64_t group_step, int64_t rows) {
  const bool done =
      unpack_groups<Elements, kGroups, kOrdered, false>(from, stride, to, step, group_step, rows);
  if (__builtin_expect(!done, 0)) {
    unpack_groups<Elements, kGroups, kOrdered, true>(from, stride, to, step, group_step, rows);
  }
}

template <class Elements>
void unpack_panels(const std::byte* y, int64_t y_stride, float* panels, int64_t columns,
                   int64_t depth) {
  int64_t n = 0;
  for (; n + 4 * kPanel <= columns; n += 4 * kPanel) {
    unpack_block<Elements, 4, false>(y + n * Elements::kBytes, y_stride, panels + n * depth, kPanel,
                                     depth * kPanel, depth);
  }
  for (; n < columns; n += kPanel) {
    unpack_block<Elements, 1, false>(y + n * Elements::kBytes, y_stride, panels + n * depth, kPanel,
                                     depth * kPanel, depth);
  }
}

template <class Elements>
void multiply_fresh(const float* a, int64_t lda, const std::byte* y, int64_t y_stride,
                    float* panels, float* c, int64_t ldc, int64_t rows, int64_t columns,
                    int64_t depth, Continuation continuation) {
  unpack_panels<Elements>(y, y_stride, panels, columns, depth);
  multiply_panels<Elements>(a, lda, panels, c, ldc, rows, columns, depth, continuation);
}

template <class Elements>
void unpack_rows(const std::byte* x, int64_t x_stride, float* to, int64_t step, int64_t rows,
                 int64_t columns) {
  int64_t k = 0;
  for (; k + 4 * kPanel <= columns; k += 4 * kPanel) {
    unpack_block<Elements, 4, true>(x + k * Elements::kBytes, x_stride, to + k, step, kPanel, rows);
  }
  for (; k < columns; k += kPanel) {
    unpack_block<Elements, 1, true>(x + k * Elements::kBytes, x_stride, to + k, step, kPanel, rows);
  }
}

// ---------------------------------------------------------------------------- unpacking on the fly

template <class Elements, int kRows, int kGroups, bool kAny>
SPYRE_SIMD_INLINE bool direct_groups(const float* a, int64_t lda, const std::byte* y,
                                     int64_t y_stride, float* c, int64_t ldc, int64_t depth,
                                     Continuation continuation) {
  constexpr int64_t kAhead = 16;  // rows of y to fetch, with all columns of the stick
  typename Elements::Seen seen{};
  Pair<F32x8> sum[kRows][kGroups];  // in the order of the elements
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const float* from = c + i * ldc + g * kPanel;
      sum[i][g] = continuation.first
                      ? Pair<F32x8>{}
                      : Elements::swap({load<F32x8>(from), load<F32x8>(from + kVector)});
    }
  }
  for (int64_t k = 0; k < depth; ++k, y += y_stride) {
    if constexpr (kRows > 1) {
      __builtin_prefetch(y + kAhead * y_stride);
      __builtin_prefetch(y + kAhead * y_stride + 64);
    }
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const Pair<F32x8> b = unpack_group<Elements, kAny>(y + g * kPanel * Elements::kBytes, seen);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        const F32x8 x = splat(a[i * lda + k]);
        sum[i][g].first = fma(x, b.first, sum[i][g].first);
        sum[i][g].second = fma(x, b.second, sum[i][g].second);
      }
    }
  }
  if (!kAny && !Elements::was_right(seen)) return false;
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      float* to = c + i * ldc + g * kPanel;
      const Pair<F32x8> ordered = Elements::swap(sum[i][g]);
      store(to, continuation.last ? one_nan(ordered.first) : ordered.first);
      store(to + kVector, continuation.last ? one_nan(ordered.second) : ordered.second);
    }
  }
  return true;
}

template <class Elements, int kRows, int kGroups>
void direct_columns(const float* a, int64_t lda, const std::byte* y, int64_t y_stride, float* c,
                    int64_t ldc, int64_t depth, Continuation continuation) {
  if (!direct_groups<Elements, kRows, kGroups, false>(a, lda, y, y_stride, c, ldc, depth,
                                                      continuation)) {
    direct_groups<Elements, kRows, kGroups, true>(a, lda, y, y_stride, c, ldc, depth, continuation);
  }
}

// As many groups of columns at a time as there are registers for their sums.
template <class Elements, int kRows, int kGroups>
void direct_rows(const float* a, int64_t lda, const std::byte* y, int64_t y_stride, float* c,
                 int64_t ldc, int64_t columns, int64_t depth, Continuation continuation) {
  int64_t n = 0;
  for (; n + kGroups * kPanel <= columns; n += kGroups * kPanel) {
    direct_columns<Elements, kRows, kGroups>(a, lda, y + n * Elements::kBytes, y_stride, c + n, ldc,
                                             depth, continuation);
  }
  for (; n < columns; n += kPanel) {
    direct_columns<Elements, kRows, 1>(a, lda, y + n * Elements::kBytes, y_stride, c + n, ldc,
                                       depth, continuation);
  }
}

template <class Elements>
void multiply_direct(const float* a, int64_t lda, const std::byte* y, int64_t y_stride, float* c,
                     int64_t ldc, int64_t rows, int64_t columns, int64_t depth,
                     Continuation continuation) {
  switch (rows) {
    case 1:
      return direct_rows<Elements, 1, 4>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 2:
      return direct_rows<Elements, 2, 2>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 3:
      return direct_rows<Elements, 3, 1>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 4:
      return direct_rows<Elements, 4, 1>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 5:
      return direct_rows<Elements, 5, 1>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
  }
}

void add_partial(float* total, const float* partial, int64_t count) {
  for (int64_t i = 0; i < count; i += kVector) {
    store(total + i, one_nan(load<F32x8>(total + i) + load<F32x8>(partial + i)));
  }
}

template <class Elements>
constexpr MatmulKernels::Format kFormat = {unpack_panels<Elements>, unpack_rows<Elements>,
                                           multiply_direct<Elements>, multiply_panels<Elements>,
                                           multiply_fresh<Elements>};

}  // namespace

extern const MatmulKernels kMatmulKernels = {
    .dlfloat16 = kFormat<Dlfloat16Elements>,
    .half = kFormat<HalfElements>,
    .single = kFormat<FloatElements>,
    .add = add_partial,
    .encode_dlfloat16 = nullptr,
};

}  // namespace spyre::card::SPYRE_SIMD_NAMESPACE
