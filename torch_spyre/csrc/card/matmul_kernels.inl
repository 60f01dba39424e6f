// The kernels of matmul_kernels.h, written once against simd.h and compiled once for each of its
// forms. Included by matmul_avx2.cpp (which sets the target before) and matmul_portable.cpp.
//
// Products and sums are never separate here, so there is nothing a compiler could contract.
#include <cstddef>
#include <cstdint>

#include "dlfloat16.h"
#include "matmul_kernels.h"
#include "simd.h"

namespace spyre::card::SPYRE_SIMD_NAMESPACE {
namespace {

// Internal linkage throughout: an AVX2 instance must never be merged with a portable one.

constexpr int kVector = 8;

SPYRE_SIMD_INLINE F32x8 splat(float v) { return F32x8{v, v, v, v, v, v, v, v}; }

SPYRE_SIMD_INLINE F32x8 one_nan(const F32x8& value) {
  const I32x8 nan = I32x8{} + 0x7fc00000;
  return select(value != value, bits<F32x8>(nan), value);
}

// ------------------------------------------------------------------------------ unpacked panels

template <int kRows>
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
    store(c + i * ldc, continuation.last ? one_nan(sum[i][0]) : sum[i][0]);
    store(c + i * ldc + kVector, continuation.last ? one_nan(sum[i][1]) : sum[i][1]);
  }
}

void multiply_panel(const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                    int64_t rows, int64_t depth, Continuation continuation) {
  while (rows > 0) {
    // 4 + 4 instead of 6 + 2: few rows have too few sums to keep the processor busy.
    const int64_t some = rows == 7 || rows == 8 ? 4 : rows < kMicroRows ? rows : kMicroRows;
    switch (some) {
      case 1:
        multiply_rows<1>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 2:
        multiply_rows<2>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 3:
        multiply_rows<3>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 4:
        multiply_rows<4>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 5:
        multiply_rows<5>(a, lda, b, c, ldc, depth, continuation);
        break;
      case 6:
        multiply_rows<6>(a, lda, b, c, ldc, depth, continuation);
        break;
    }
    a += some * lda;
    c += some * ldc;
    rows -= some;
  }
}

// ------------------------------------------------------------------------------------ elements

// How 16 elements become floats, in an order of lanes that `swap` puts right (and back). Rows for
// which is_plain says so may be unpacked in a simpler way.

struct FloatElements {
  static constexpr int64_t kBytes = 4;
  template <int kGroups>
  SPYRE_SIMD_INLINE static bool is_plain(const std::byte*) {
    return true;
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack_plain(const std::byte* from) {
    return {load<F32x8>(from), load<F32x8>(from + 32)};
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack(const std::byte* from) { return unpack_plain(from); }
  SPYRE_SIMD_INLINE static Pair<F32x8> swap(const Pair<F32x8>& pair) { return pair; }
};

struct HalfElements {
  static constexpr int64_t kBytes = 2;
  template <int kGroups>
  SPYRE_SIMD_INLINE static bool is_plain(const std::byte*) {
    return true;
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack_plain(const std::byte* from) {
    return half_to_float(load<U16x16>(from));
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack(const std::byte* from) { return unpack_plain(from); }
  SPYRE_SIMD_INLINE static Pair<F32x8> swap(const Pair<F32x8>& pair) { return pair; }
};

// As decode in convert.inl, but infinity and NaN are looked for once a row. They are rare.
struct Dlfloat16Elements {
  static constexpr int64_t kBytes = 2;

  SPYRE_SIMD_INLINE static I16x16 magnitude(const I16x16& code) {
    return code & static_cast<int16_t>(Dlfloat16::kMagnitude);
  }
  // Upper half of the float32. The sign is shifted in; the two bits below it must not be.
  SPYRE_SIMD_INLINE static I16x16 upper(const I16x16& code) {
    const I16x16 rebias = I16x16{} + int16_t{Dlfloat16::kRebias >> 16};
    return ((code >> 2) & static_cast<int16_t>(0x9fff)) + keep_at_numbers(rebias, magnitude(code));
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> join_floats(const I16x16& low, const I16x16& high) {
    const Pair<U32x8> joined = join_swapped(bits<U16x16>(low), bits<U16x16>(high));
    return {bits<F32x8>(joined.first), bits<F32x8>(joined.second)};
  }

  template <int kGroups>
  SPYRE_SIMD_INLINE static bool is_plain(const std::byte* row) {
    I16x16 most = magnitude(load<I16x16>(row));
#pragma GCC unroll 4
    for (int g = 1; g < kGroups; ++g) {
      most = max(most, magnitude(load<I16x16>(row + g * kPanel * kBytes)));
    }
    return all(most < int16_t{Dlfloat16::kInfinity});
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack_plain(const std::byte* from) {
    const I16x16 code = load<I16x16>(from);
    return join_floats(code << Dlfloat16::kShift, upper(code));
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> unpack(const std::byte* from) {
    const I16x16 code = load<I16x16>(from);
    const I16x16 finite = magnitude(code) < int16_t{Dlfloat16::kInfinity};
    const I16x16 nan = magnitude(code) == int16_t{Dlfloat16::kNan};
    const I16x16 special = (code & static_cast<int16_t>(Dlfloat16::kSign)) | int16_t{0x7f80};
    const I16x16 high = (upper(code) & finite) | (special & ~finite) | (nan & int16_t{0x40});
    return join_floats((code << Dlfloat16::kShift) & finite, high);
  }
  SPYRE_SIMD_INLINE static Pair<F32x8> swap(const Pair<F32x8>& pair) { return swap_order(pair); }
};

// Calls use(g, 16 unpacked elements) for each group of a row.
template <class Elements, int kGroups, class Use>
SPYRE_SIMD_INLINE void unpack_row(const std::byte* row, Use&& use) {
  if (__builtin_expect(Elements::template is_plain<kGroups>(row), 1)) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      use(g, Elements::unpack_plain(row + g * kPanel * Elements::kBytes));
    }
  } else {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      use(g, Elements::unpack(row + g * kPanel * Elements::kBytes));
    }
  }
}

// ---------------------------------------------------------------------------- unpacking to panels

template <class Elements, int kGroups>
void unpack_groups(const std::byte* y, int64_t y_stride, float* panels, int64_t depth) {
  for (int64_t k = 0; k < depth; ++k) {
    unpack_row<Elements, kGroups>(
        y + k * y_stride, [&](int g, const Pair<F32x8>& lanes) __attribute__((always_inline)) {
          const Pair<F32x8> ordered = Elements::swap(lanes);
          float* to = panels + (g * depth + k) * kPanel;
          store(to, ordered.first);
          store(to + kVector, ordered.second);
        });
  }
}

template <class Elements>
void unpack_panels(const std::byte* y, int64_t y_stride, float* panels, int64_t columns,
                   int64_t depth) {
  int64_t n = 0;
  for (; n + 4 * kPanel <= columns; n += 4 * kPanel) {
    unpack_groups<Elements, 4>(y + n * Elements::kBytes, y_stride, panels + n * depth, depth);
  }
  for (; n < columns; n += kPanel) {
    unpack_groups<Elements, 1>(y + n * Elements::kBytes, y_stride, panels + n * depth, depth);
  }
}

// ---------------------------------------------------------------------------- unpacking on the fly

template <class Elements, int kRows, int kGroups>
void direct_columns(const float* a, int64_t lda, const std::byte* y, int64_t y_stride, float* c,
                    int64_t ldc, int64_t depth, Continuation continuation) {
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
  for (int64_t k = 0; k < depth; ++k) {
    unpack_row<Elements, kGroups>(y + k * y_stride,
                                  [&](int g, const Pair<F32x8>& b) __attribute__((always_inline)) {
#pragma GCC unroll 6
                                    for (int i = 0; i < kRows; ++i) {
                                      const F32x8 x = splat(a[i * lda + k]);
                                      sum[i][g].first = fma(x, b.first, sum[i][g].first);
                                      sum[i][g].second = fma(x, b.second, sum[i][g].second);
                                    }
                                  });
  }
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
      return direct_rows<Elements, 3, 2>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 4:
      return direct_rows<Elements, 4, 1>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 5:
      return direct_rows<Elements, 5, 1>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 6:
      return direct_rows<Elements, 6, 1>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
  }
}

void add_partial(float* total, const float* partial, int64_t count) {
  for (int64_t i = 0; i < count; i += kVector) {
    store(total + i, one_nan(load<F32x8>(total + i) + load<F32x8>(partial + i)));
  }
}

}  // namespace

extern const MatmulKernels kMatmulKernels = {
    .panel = multiply_panel,
    .dlfloat16 = {unpack_panels<Dlfloat16Elements>, multiply_direct<Dlfloat16Elements>},
    .half = {unpack_panels<HalfElements>, multiply_direct<HalfElements>},
    .single = {unpack_panels<FloatElements>, multiply_direct<FloatElements>},
    .add = add_partial,
};

}  // namespace spyre::card::SPYRE_SIMD_NAMESPACE
