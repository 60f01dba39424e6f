// The kernels of matmul/kernels.h for x86 processors with AVX-512; chosen at run time by
// matmul/matmul.cpp.
//
// Its own text, not a form of numerics/simd.h: 32 registers of 16 lanes want other blocks of sums,
// and a vector holds a whole panel, so that unpacking leaves columns in their order.
#if defined(__x86_64__) || defined(__i386__)

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "matmul/kernels.h"
#include "numerics/dlfloat16.h"
#include "numerics/target.h"

SPYRE_TARGET_BEGIN(SPYRE_AVX512)

namespace spyre::card::simd_avx512 {
namespace {

SPYRE_INLINE __m512 one_nan(__m512 value) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), nan);
}

// ------------------------------------------------------------------------------------ elements

// How 16 elements become floats. As in matmul/kernels.inl the quick form may be wrong for rare
// elements, takes note of what it has seen, and `was_right` says whether all was ordinary.

struct FloatElements {
  struct Seen {};
  static constexpr int64_t kBytes = 4;
  SPYRE_INLINE static __m512 unpack(const std::byte* from, Seen&) { return _mm512_loadu_ps(from); }
  SPYRE_INLINE static __m512 unpack_any(const std::byte* from) { return _mm512_loadu_ps(from); }
  SPYRE_INLINE static bool was_right(const Seen&) { return true; }
};

struct HalfElements {
  struct Seen {};
  static constexpr int64_t kBytes = 2;
  SPYRE_INLINE static __m512 unpack_any(const std::byte* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  SPYRE_INLINE static __m512 unpack(const std::byte* from, Seen&) { return unpack_any(from); }
  SPYRE_INLINE static bool was_right(const Seen&) { return true; }
};

struct Dlfloat16Elements {
  struct Seen {
    __m256i most;  // the largest magnitudes
  };
  static constexpr int64_t kBytes = 2;

  // The sign is shifted in; the two bits below it must not be.
  SPYRE_INLINE static __m512i number(__m256i code) {
    static_assert(Dlfloat16::kShift == 14);
    const __m512i shifted = _mm512_slli_epi32(_mm512_cvtepi16_epi32(code), Dlfloat16::kShift);
    const __mmask16 numbers = _mm512_test_epi32_mask(
        shifted, _mm512_set1_epi32(Dlfloat16::kMagnitude << Dlfloat16::kShift));
    const __m512i bits =
        _mm512_and_si512(shifted, _mm512_set1_epi32(static_cast<int32_t>(0x9fffffff)));
    return _mm512_mask_add_epi32(bits, numbers, bits, _mm512_set1_epi32(Dlfloat16::kRebias));
  }
  SPYRE_INLINE static __m512 unpack(const std::byte* from, Seen& seen) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    seen.most = _mm256_max_epu16(seen.most,
                                 _mm256_and_si256(code, _mm256_set1_epi16(Dlfloat16::kMagnitude)));
    return _mm512_castsi512_ps(number(code));
  }
  SPYRE_INLINE static __m512 unpack_any(const std::byte* from) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(Dlfloat16::kMagnitude));
    const __mmask16 infinite = _mm256_cmpeq_epi16_mask(
        magnitude, _mm256_set1_epi16(static_cast<int16_t>(Dlfloat16::kInfinity)));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(
        magnitude, _mm256_set1_epi16(static_cast<int16_t>(Dlfloat16::kNan)));
    const __m512i bits = number(code);
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN));
    const __m512i some = _mm512_mask_or_epi32(bits, infinite, sign, _mm512_set1_epi32(0x7f800000));
    return _mm512_castsi512_ps(
        _mm512_mask_or_epi32(some, nan, sign, _mm512_set1_epi32(0x7fc00000)));
  }
  SPYRE_INLINE static bool was_right(const Seen& seen) {
    return _mm256_cmpge_epu16_mask(
               seen.most, _mm256_set1_epi16(static_cast<int16_t>(Dlfloat16::kInfinity))) == 0;
  }
};

template <class Elements, bool kAny>
SPYRE_INLINE __m512 unpack_group(const std::byte* from, typename Elements::Seen& seen) {
  if constexpr (kAny) return Elements::unpack_any(from);
  return Elements::unpack(from, seen);
}

// ------------------------------------------------------------------------------ unpacked panels

template <int kRows, int kPanels>
void multiply_rows(const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                   int64_t depth, Continuation continuation) {
  const int64_t next = depth * kPanel;  // from panel to panel
  __m512 sum[kRows][kPanels];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      sum[i][p] =
          continuation.first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + i * ldc + p * kPanel);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    __m512 y[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) y[p] = _mm512_loadu_ps(b + p * next + k * kPanel);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m512 x = _mm512_set1_ps(a[i * lda + k]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) sum[i][p] = _mm512_fmadd_ps(x, y[p], sum[i][p]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      _mm512_storeu_ps(c + i * ldc + p * kPanel,
                       continuation.last ? one_nan(sum[i][p]) : sum[i][p]);
    }
  }
}

using MultiplyRows = void (*)(const float*, int64_t, const float*, float*, int64_t, int64_t,
                              Continuation);

// By the number of rows. Few panels take more of them, for the same number of sums.
template <int kPanels>
constexpr MultiplyRows kMultiplyRows[] = {multiply_rows<1, kPanels>, multiply_rows<2, kPanels>,
                                          multiply_rows<3, kPanels>, multiply_rows<4, kPanels>,
                                          multiply_rows<5, kPanels>, multiply_rows<6, kPanels>,
                                          multiply_rows<7, kPanels>, multiply_rows<8, kPanels>};
template <>
constexpr MultiplyRows kMultiplyRows<4>[] = {multiply_rows<1, 4>, multiply_rows<2, 4>,
                                             multiply_rows<3, 4>, multiply_rows<4, 4>,
                                             multiply_rows<5, 4>, multiply_rows<6, 4>};

template <int kPanels>
SPYRE_INLINE void multiply_all_rows(const float* a, int64_t lda, const float* b, float* c,
                                    int64_t ldc, int64_t rows, int64_t depth,
                                    Continuation continuation) {
  constexpr int64_t kMost = std::size(kMultiplyRows<kPanels>);
  while (rows > 0) {
    const int64_t pieces = (rows + kMost - 1) / kMost;
    const int64_t some = (rows + pieces - 1) / pieces;
    kMultiplyRows<kPanels>[some - 1](a, lda, b, c, ldc, depth, continuation);
    a += some * lda;
    c += some * ldc;
    rows -= some;
  }
}

void multiply_panels(const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                     int64_t rows, int64_t columns, int64_t depth, Continuation continuation) {
  for (; columns >= 4 * kPanel; columns -= 4 * kPanel) {
    multiply_all_rows<4>(a, lda, b, c, ldc, rows, depth, continuation);
    b += 4 * kPanel * depth;
    c += 4 * kPanel;
  }
  switch (columns / kPanel) {
    case 1:
      return multiply_all_rows<1>(a, lda, b, c, ldc, rows, depth, continuation);
    case 2:
      return multiply_all_rows<2>(a, lda, b, c, ldc, rows, depth, continuation);
    case 3:
      return multiply_all_rows<3>(a, lda, b, c, ldc, rows, depth, continuation);
  }
}

// ------------------------------------------------------------------------------------- unpacking

// Rows of scores lie kilobytes apart, where a processor does not guess what comes next. After the
// last row this is mostly the next stick, and never does harm.
constexpr int64_t kAhead = 16;  // rows to fetch

template <class Elements, int kGroups, bool kAny>
SPYRE_INLINE bool unpack_groups(const std::byte* from, int64_t stride, float* to, int64_t step,
                                int64_t group_step, int64_t rows) {
  typename Elements::Seen seen{};
  for (int64_t r = 0; r < rows; ++r) {
    if constexpr (kGroups > 1) {
#pragma GCC unroll 4
      for (int64_t line = 0; line < kGroups * kPanel * Elements::kBytes; line += 64) {
        __builtin_prefetch(from + (r + kAhead) * stride + line);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const std::byte* group = from + r * stride + g * kPanel * Elements::kBytes;
      _mm512_storeu_ps(to + r * step + g * group_step, unpack_group<Elements, kAny>(group, seen));
    }
  }
  return kAny || Elements::was_right(seen);
}

// Groups of 16 elements of each row; rows become `step` floats apart, groups `group_step`.
template <class Elements, int kGroups>
SPYRE_INLINE void unpack_block(const std::byte* from, int64_t stride, float* to, int64_t step,
                               int64_t group_step, int64_t rows) {
  if (__builtin_expect(
          !unpack_groups<Elements, kGroups, false>(from, stride, to, step, group_step, rows), 0)) {
    unpack_groups<Elements, kGroups, true>(from, stride, to, step, group_step, rows);
  }
}

template <class Elements>
void unpack_columns(const std::byte* from, int64_t stride, float* to, int64_t step,
                    int64_t group_step, int64_t rows, int64_t columns) {
  for (; columns >= 4 * kPanel; columns -= 4 * kPanel) {
    unpack_block<Elements, 4>(from, stride, to, step, group_step, rows);
    from += 4 * kPanel * Elements::kBytes;
    to += 4 * group_step;
  }
  if (columns >= 2 * kPanel) {
    unpack_block<Elements, 2>(from, stride, to, step, group_step, rows);
    from += 2 * kPanel * Elements::kBytes;
    to += 2 * group_step;
    columns -= 2 * kPanel;
  }
  for (; columns > 0; columns -= kPanel) {
    unpack_block<Elements, 1>(from, stride, to, step, group_step, rows);
    from += kPanel * Elements::kBytes;
    to += group_step;
  }
}

template <class Elements>
void unpack_panels(const std::byte* y, int64_t y_stride, float* panels, int64_t columns,
                   int64_t depth) {
  unpack_columns<Elements>(y, y_stride, panels, kPanel, depth * kPanel, depth, columns);
}

template <class Elements>
void unpack_rows(const std::byte* x, int64_t x_stride, float* to, int64_t step, int64_t rows,
                 int64_t columns) {
  unpack_columns<Elements>(x, x_stride, to, step, kPanel, rows, columns);
}

// ------------------------------------------------------------------------ unpacking on the way
//
// The first rows of a product unpack y: that takes other units of the processor than its products,
// and what they read for the following rows has just been written.

template <class Elements, int kRows, bool kAny>
SPYRE_INLINE bool unpack_and_multiply(const float* a, int64_t lda, const std::byte* y,
                                      int64_t y_stride, float* panels, float* c, int64_t ldc,
                                      int64_t depth, Continuation continuation) {
  constexpr int64_t kRowsAhead = 16;  // of y, to fetch
  typename Elements::Seen seen{};
  __m512 sum[kRows][4];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      sum[i][p] =
          continuation.first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + i * ldc + p * kPanel);
    }
  }
  for (int64_t k = 0; k < depth; ++k, y += y_stride) {
    __builtin_prefetch(y + kRowsAhead * y_stride);
    __builtin_prefetch(y + kRowsAhead * y_stride + 64);
    __m512 b[4];
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      b[p] = unpack_group<Elements, kAny>(y + p * kPanel * Elements::kBytes, seen);
      _mm512_storeu_ps(panels + (p * depth + k) * kPanel, b[p]);
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m512 x = _mm512_set1_ps(a[i * lda + k]);
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) sum[i][p] = _mm512_fmadd_ps(x, b[p], sum[i][p]);
    }
  }
  if (!kAny && !Elements::was_right(seen)) return false;
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      _mm512_storeu_ps(c + i * ldc + p * kPanel,
                       continuation.last ? one_nan(sum[i][p]) : sum[i][p]);
    }
  }
  return true;
}

template <class Elements, int kRows>
void multiply_fresh_rows(const float* a, int64_t lda, const std::byte* y, int64_t y_stride,
                         float* panels, float* c, int64_t ldc, int64_t depth,
                         Continuation continuation) {
  if (!unpack_and_multiply<Elements, kRows, false>(a, lda, y, y_stride, panels, c, ldc, depth,
                                                   continuation)) {
    unpack_and_multiply<Elements, kRows, true>(a, lda, y, y_stride, panels, c, ldc, depth,
                                               continuation);
  }
}

template <class Elements>
void multiply_fresh(const float* a, int64_t lda, const std::byte* y, int64_t y_stride,
                    float* panels, float* c, int64_t ldc, int64_t rows, int64_t columns,
                    int64_t depth, Continuation continuation) {
  using Multiply = decltype(&multiply_fresh_rows<Elements, 1>);
  static constexpr Multiply kByRows[] = {
      multiply_fresh_rows<Elements, 1>, multiply_fresh_rows<Elements, 2>,
      multiply_fresh_rows<Elements, 3>, multiply_fresh_rows<Elements, 4>,
      multiply_fresh_rows<Elements, 5>, multiply_fresh_rows<Elements, 6>};
  constexpr int64_t kMost = std::size(kByRows);
  if (columns != 4 * kPanel) {
    unpack_panels<Elements>(y, y_stride, panels, columns, depth);
    multiply_panels(a, lda, panels, c, ldc, rows, columns, depth, continuation);
    return;
  }
  const int64_t pieces = (rows + kMost - 1) / kMost;
  const int64_t some = (rows + pieces - 1) / pieces;
  kByRows[some - 1](a, lda, y, y_stride, panels, c, ldc, depth, continuation);
  multiply_all_rows<4>(a + some * lda, lda, panels, c + some * ldc, ldc, rows - some, depth,
                       continuation);
}

// ---------------------------------------------------------------------------- unpacking on the fly

template <class Elements, int kRows, int kGroups, bool kAny>
SPYRE_INLINE bool direct_groups(const float* a, int64_t lda, const std::byte* y, int64_t y_stride,
                                float* c, int64_t ldc, int64_t depth, Continuation continuation) {
  constexpr int64_t kRowsAhead = 16;  // of y, to fetch
  typename Elements::Seen seen{};
  __m512 sum[kRows][kGroups];
#pragma GCC unroll 5
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      sum[i][g] =
          continuation.first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + i * ldc + g * kPanel);
    }
  }
  for (int64_t k = 0; k < depth; ++k, y += y_stride) {
    if constexpr (kRows > 1) {
      __builtin_prefetch(y + kRowsAhead * y_stride);
      __builtin_prefetch(y + kRowsAhead * y_stride + 64);
    }
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const __m512 b = unpack_group<Elements, kAny>(y + g * kPanel * Elements::kBytes, seen);
#pragma GCC unroll 5
      for (int i = 0; i < kRows; ++i) {
        sum[i][g] = _mm512_fmadd_ps(_mm512_set1_ps(a[i * lda + k]), b, sum[i][g]);
      }
    }
  }
  if (!kAny && !Elements::was_right(seen)) return false;
#pragma GCC unroll 5
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      _mm512_storeu_ps(c + i * ldc + g * kPanel,
                       continuation.last ? one_nan(sum[i][g]) : sum[i][g]);
    }
  }
  return true;
}

// What the processor notes about its arithmetic from here on, with subnormal numbers, also in
// threads that were told to do without (torch.set_flush_denormal).
class FloatNotes {
 public:
  FloatNotes() : before_(_mm_getcsr()) { _mm_setcsr(kNoted); }
  ~FloatNotes() { _mm_setcsr(before_); }
  FloatNotes(const FloatNotes&) = delete;
  FloatNotes& operator=(const FloatNotes&) = delete;

  // Whether no operand was subnormal and no result too large or too small.
  static bool are_ordinary() {
    constexpr unsigned kSubnormalOperand = 2, kOverflow = 8, kUnderflow = 16;
    return (_mm_getcsr() & (kSubnormalOperand | kOverflow | kUnderflow)) == 0;
  }

 private:
  static constexpr unsigned kNoted = 0x1f80;  // nothing yet, and nothing is a signal
  const unsigned before_;
};

// The same of 64 codes of DLFloat16 a row of y, in half the instructions. Even and odd ones,
// shifted and masked, are numbers times 2^-96; rows of x are multiplied with 2^64, and so sums are
// 2^-32 of what they should be: the same bits, if nothing is subnormal or too large on the way.
// Codes below 2^-30 are subnormal like that, so that the processor sees them. False where it saw
// something, or where a code is infinite or NaN; c is as it was then.
template <int kRows>
SPYRE_INLINE bool direct_codes(const float* a, int64_t lda, const std::byte* y, int64_t y_stride,
                               float* c, int64_t ldc, int64_t depth, Continuation continuation) {
  constexpr int64_t kRowsAhead = 16;  // of y, to fetch
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  const __m512i lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i upper = _mm512_or_si512(lower, _mm512_set1_epi32(8));
  const __m512i kept = _mm512_set1_epi32(static_cast<int32_t>(0x9fffc000));
  const __m512i magnitude = _mm512_set1_epi16(Dlfloat16::kMagnitude);
  const __m512 scale = _mm512_set1_ps(0x1p64f);
  __m512i most = _mm512_setzero_si512();
  __m512 sum[kRows][4];  // even and odd columns of 32, then of the next 32
  const FloatNotes notes;
#pragma GCC unroll 5
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int p = 0; p < 4; p += 2) {
      __m512 before[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      if (!continuation.first) {
        const float* from = c + i * ldc + p * kPanel;
        const __m512 first = _mm512_loadu_ps(from), second = _mm512_loadu_ps(from + kPanel);
        const __m512 down = _mm512_set1_ps(0x1p-32f);
        before[0] = _mm512_mul_ps(_mm512_permutex2var_ps(first, even, second), down);
        before[1] = _mm512_mul_ps(_mm512_permutex2var_ps(first, odd, second), down);
      }
      sum[i][p] = before[0];
      sum[i][p + 1] = before[1];
    }
  }
  for (int64_t k = 0; k < depth; ++k, y += y_stride) {
    if constexpr (kRows > 1) {
      __builtin_prefetch(y + kRowsAhead * y_stride);
      __builtin_prefetch(y + kRowsAhead * y_stride + 64);
    }
    __m512 x[kRows];
#pragma GCC unroll 5
    for (int i = 0; i < kRows; ++i) x[i] = _mm512_mul_ps(_mm512_set1_ps(a[i * lda + k]), scale);
#pragma GCC unroll 2
    for (int p = 0; p < 4; p += 2) {
      const __m512i codes = _mm512_loadu_si512(y + p * kPanel * 2);
      most = _mm512_max_epu16(most, _mm512_and_si512(codes, magnitude));
      const auto number = [&](__m512i above) {
        static_assert(Dlfloat16::kShift == 14);
        return _mm512_castsi512_ps(_mm512_and_si512(_mm512_srai_epi32(above, 2), kept));
      };
      const __m512 first = number(_mm512_slli_epi32(codes, 16)), second = number(codes);
#pragma GCC unroll 5
      for (int i = 0; i < kRows; ++i) {
        sum[i][p] = _mm512_fmadd_ps(x[i], first, sum[i][p]);
        sum[i][p + 1] = _mm512_fmadd_ps(x[i], second, sum[i][p + 1]);
      }
    }
  }
  // Compilers do not know that these sums are what is noted.
#pragma GCC unroll 20
  for (int i = 0; i < kRows * 4; ++i) asm volatile("" : "+v"(sum[i / 4][i % 4]));
  if (!FloatNotes::are_ordinary()) return false;
  if (_mm512_cmpge_epu16_mask(most,
                              _mm512_set1_epi16(static_cast<int16_t>(Dlfloat16::kInfinity))) != 0) {
    return false;
  }
#pragma GCC unroll 5
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int p = 0; p < 4; p += 2) {
      const __m512 up = _mm512_set1_ps(0x1p32f);
      const __m512 first = _mm512_mul_ps(sum[i][p], up), second = _mm512_mul_ps(sum[i][p + 1], up);
      __m512 both[2] = {_mm512_permutex2var_ps(first, lower, second),
                        _mm512_permutex2var_ps(first, upper, second)};
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        _mm512_storeu_ps(c + i * ldc + (p + half) * kPanel,
                         continuation.last ? one_nan(both[half]) : both[half]);
      }
    }
  }
  return true;
}

template <class Elements, int kRows, int kGroups>
SPYRE_INLINE void direct_columns(const float* a, int64_t lda, const std::byte* y, int64_t y_stride,
                                 float* c, int64_t ldc, int64_t depth, Continuation continuation) {
  if constexpr (std::is_same_v<Elements, Dlfloat16Elements> && kGroups == 4) {
    if (direct_codes<kRows>(a, lda, y, y_stride, c, ldc, depth, continuation)) return;
  }
  if (!direct_groups<Elements, kRows, kGroups, false>(a, lda, y, y_stride, c, ldc, depth,
                                                      continuation)) {
    direct_groups<Elements, kRows, kGroups, true>(a, lda, y, y_stride, c, ldc, depth, continuation);
  }
}

template <class Elements, int kRows>
void direct_rows(const float* a, int64_t lda, const std::byte* y, int64_t y_stride, float* c,
                 int64_t ldc, int64_t columns, int64_t depth, Continuation continuation) {
  int64_t n = 0;
  for (; n + 4 * kPanel <= columns; n += 4 * kPanel) {
    direct_columns<Elements, kRows, 4>(a, lda, y + n * Elements::kBytes, y_stride, c + n, ldc,
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
      return direct_rows<Elements, 1>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 2:
      return direct_rows<Elements, 2>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 3:
      return direct_rows<Elements, 3>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 4:
      return direct_rows<Elements, 4>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
    case 5:
      return direct_rows<Elements, 5>(a, lda, y, y_stride, c, ldc, columns, depth, continuation);
  }
}

void add_partial(float* total, const float* partial, int64_t count) {
  for (int64_t i = 0; i < count; i += kPanel) {
    _mm512_storeu_ps(total + i, one_nan(_mm512_add_ps(_mm512_loadu_ps(total + i),
                                                      _mm512_loadu_ps(partial + i))));
  }
}

// As in numerics/dlfloat16.h.
SPYRE_INLINE __m512i encode(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX));
  const __m512i rounded = _mm512_srai_epi32(
      _mm512_add_epi32(magnitude, _mm512_set1_epi32(Dlfloat16::kHalfUlp - Dlfloat16::kRebias)),
      Dlfloat16::kShift);
  const __mmask16 numbers =
      _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(Dlfloat16::kHalfTiny));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i most = _mm512_min_epi32(rounded, _mm512_set1_epi32(Dlfloat16::kInfinity));
  const __m512i clamped = _mm512_maskz_max_epi32(numbers, most, _mm512_set1_epi32(1));
  const __m512i code = _mm512_mask_mov_epi32(clamped, nan, _mm512_set1_epi32(Dlfloat16::kNan));
  constexpr int kFirstOrBothOthers = 0xf8;  // a | (b & c)
  return _mm512_ternarylogic_epi32(code, _mm512_srli_epi32(bits, 16),
                                   _mm512_set1_epi32(Dlfloat16::kSign), kFirstOrBothOthers);
}

void encode_dlfloat16(std::byte* to, int64_t stride, const float* sums, int64_t rows) {
  // The lower halves of 32 lanes of two vectors.
  alignas(64) static constexpr auto kLower = [] {
    std::array<uint16_t, 32> index{};
    for (int i = 0; i < 32; ++i) index[i] = static_cast<uint16_t>(2 * i);
    return index;
  }();
  const __m512i lower = _mm512_load_si512(kLower.data());
  for (int64_t r = 0; r < rows; ++r, to += stride, sums += 4 * kPanel) {
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half) {
      const float* from = sums + half * 2 * kPanel;
      const __m512i first = encode(_mm512_loadu_ps(from));
      const __m512i second = encode(_mm512_loadu_ps(from + kPanel));
      _mm512_storeu_si512(to + half * 64, _mm512_permutex2var_epi16(first, lower, second));
    }
  }
}

template <class Elements>
constexpr MatmulKernels::Format kFormat = {unpack_panels<Elements>, unpack_rows<Elements>,
                                           multiply_direct<Elements>, multiply_panels,
                                           multiply_fresh<Elements>};

}  // namespace

extern const MatmulKernels kMatmulKernels = {
    .dlfloat16 = kFormat<Dlfloat16Elements>,
    .half = kFormat<HalfElements>,
    .single = kFormat<FloatElements>,
    .add = add_partial,
    .encode_dlfloat16 = encode_dlfloat16,
};

}  // namespace spyre::card::simd_avx512

SPYRE_TARGET_END

#endif
