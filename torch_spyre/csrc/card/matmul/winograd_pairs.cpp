#include "matmul/winograd_pairs.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cstdint>
#include <limits>

#include "numerics/target.h"

namespace spyre::card {

bool pairs_pay() {
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0 && best_simd() == Simd::AVX512;
}

const PairKernels* pair_kernels(Simd simd) {
  return simd == Simd::AVX512 ? &simd_avx512::kPairKernels : nullptr;
}

}  // namespace spyre::card

SPYRE_TARGET_BEGIN(SPYRE_AVX512)

namespace spyre::card::simd_avx512 {
namespace {

constexpr int kPairPanels = 2;  // multiplied together

// A result below this part of the larger sum of squares is computed again.
constexpr float kSmall = 0x1p-20f;
// Likewise where one sum of squares is this many times the other.
constexpr float kDifferent = 0x1p8f;
// Rows and columns with fewer numbers that are not zero, as a part of all, select rather than add:
// their results are always computed term by term. Their squares are NaN.
constexpr int64_t kSparse = 8;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Powers of two by the magnitudes of floats: what makes the largest 1 to 2, and what undoes it.
// Infinities, NaNs and zeros stay as they are.
struct Scales {
  __m512 scale, unscale;
};
SPYRE_INLINE Scales scales_of(__m512i largest) {
  const __m512i one = _mm512_set1_epi32(127);
  const __m512i exponent = _mm512_srli_epi32(largest, 23);
  const __mmask16 odd = _mm512_cmpge_epi32_mask(_mm512_sub_epi32(exponent, _mm512_set1_epi32(1)),
                                                _mm512_set1_epi32(253)) |
                        _mm512_cmpeq_epi32_mask(exponent, _mm512_setzero_si512());
  const __m512i used = _mm512_mask_mov_epi32(exponent, odd, one);
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(254), used), 23)),
      _mm512_castsi512_ps(_mm512_slli_epi32(used, 23))};
}

// The largest magnitudes of some floats, and how many floats are not zero.
struct Look {
  __m512i largest, numbers;

  SPYRE_INLINE void add(__m512 value) {
    const __m512i magnitude =
        _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(INT32_MAX));
    largest = _mm512_max_epi32(largest, magnitude);
    numbers = _mm512_add_epi32(numbers, _mm512_min_epi32(magnitude, _mm512_set1_epi32(1)));
  }
};

struct RowFacts {
  float pairs;    // the sum of x0 x1
  float squares;  // the sum of all x x
  float unscale;
};

struct Largest {
  SPYRE_INLINE static __m512i of(__m512i x, __m512i y) { return _mm512_max_epi32(x, y); }
};
struct Total {
  SPYRE_INLINE static __m512i of(__m512i x, __m512i y) { return _mm512_add_epi32(x, y); }
};
struct FloatTotal {
  SPYRE_INLINE static __m512i of(__m512i x, __m512i y) {
    return _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y)));
  }
};

// All lanes of each of four vectors into one of four lanes.
template <class Op>
SPYRE_INLINE __m128i fold(const __m512i (&lanes)[4]) {
  __m512i pairs[2];
  for (int i = 0; i < 2; ++i) {
    pairs[i] = Op::of(_mm512_unpacklo_epi32(lanes[2 * i], lanes[2 * i + 1]),
                      _mm512_unpackhi_epi32(lanes[2 * i], lanes[2 * i + 1]));
  }
  const __m512i all =
      Op::of(_mm512_unpacklo_epi64(pairs[0], pairs[1]), _mm512_unpackhi_epi64(pairs[0], pairs[1]));
  const __m512i half = Op::of(all, _mm512_shuffle_i64x2(all, all, 0x4e));
  return _mm512_castsi512_si128(Op::of(half, _mm512_shuffle_i64x2(half, half, 0xb1)));
}
SPYRE_INLINE __m128 fold_sums(const __m512 (&of)[4]) {
  const __m512i lanes[4] = {_mm512_castps_si512(of[0]), _mm512_castps_si512(of[1]),
                            _mm512_castps_si512(of[2]), _mm512_castps_si512(of[3])};
  return _mm_castsi128_ps(fold<FloatTotal>(lanes));
}

// The sign of every fourth number changes, in x and in y, which leaves their products as they are.
// Sums of x0 x1 stay small so, where all numbers are positive: they would grow with the depth.
//
// Up to four rows at a time, which changes nothing in the sums of any.
template <int kRows>
SPYRE_INLINE void prepare_some_rows(float* a, int64_t lda, int64_t depth) {
  const __m512i fourth = _mm512_maskz_set1_epi32(0x8888, INT32_MIN);
  const auto mask = [&](int64_t k) {
    return depth - k >= kPanel ? __mmask16{0xffff}
                               : static_cast<__mmask16>((1u << (depth - k)) - 1);
  };
  Look looks[kRows];
  for (Look& look : looks) look = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  for (int64_t k = 0; k < depth; k += kPanel) {
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) looks[i].add(_mm512_maskz_loadu_ps(mask(k), a + i * lda + k));
  }
  __m512i largest[4] = {}, numbers[4] = {};
  for (int i = 0; i < kRows; ++i) {
    largest[i] = looks[i].largest;
    numbers[i] = looks[i].numbers;
  }
  const __m128i most = fold<Largest>(largest), count = fold<Total>(numbers);
  const Scales scales = scales_of(_mm512_castsi128_si512(most));
  alignas(16) float unscale[4], scale[4];
  alignas(16) int32_t counts[4];
  _mm_store_ps(unscale, _mm512_castps512_ps128(scales.unscale));
  _mm_store_ps(scale, _mm512_castps512_ps128(scales.scale));
  _mm_store_si128(reinterpret_cast<__m128i*>(counts), count);
  __m512 factors[kRows], pairs[4] = {}, squares[4] = {};
  for (int i = 0; i < kRows; ++i) {
    factors[i] = _mm512_xor_ps(_mm512_set1_ps(scale[i]), _mm512_castsi512_ps(fourth));
  }
  for (int64_t k = 0; k < depth; k += kPanel) {
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      float* at = a + i * lda + k;
      const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask(k), at), factors[i]);
      _mm512_storeu_ps(at, x);
      pairs[i] = _mm512_fmadd_ps(x, _mm512_permute_ps(x, 0xb1), pairs[i]);  // each pair twice
      squares[i] = _mm512_fmadd_ps(x, x, squares[i]);
    }
  }
  alignas(16) float pair_sums[4], square_sums[4];
  _mm_store_ps(pair_sums, fold_sums(pairs));
  _mm_store_ps(square_sums, fold_sums(squares));
  for (int i = 0; i < kRows; ++i) {
    const bool sparse = counts[i] * kSparse < depth;
    *reinterpret_cast<RowFacts*>(a + (i + 1) * lda - kRowFacts) = {
        0.5f * pair_sums[i], sparse ? kNan : square_sums[i], unscale[i]};
  }
}

void prepare_rows(float* a, int64_t lda, int64_t rows, int64_t depth) {
  for (; rows >= 4; rows -= 4, a += 4 * lda) prepare_some_rows<4>(a, lda, depth);
  for (; rows > 0; --rows, a += lda) prepare_some_rows<1>(a, lda, depth);
}

void prepare_panels(float* panels, int64_t columns, int64_t depth) {
  float* facts = panels + columns * depth;
  for (int64_t n = 0; n < columns; n += kPanel, panels += depth * kPanel) {
    Look look{_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int64_t k = 0; k < depth; ++k) look.add(_mm512_loadu_ps(panels + k * kPanel));
    const Scales scales = scales_of(look.largest);
    const __mmask16 sparse =
        _mm512_cmplt_epi32_mask(_mm512_mullo_epi32(look.numbers, _mm512_set1_epi32(kSparse)),
                                _mm512_set1_epi32(static_cast<int32_t>(depth)));
    __m512 pairs = _mm512_setzero_ps(), squares = pairs, others = pairs;
    __m512 second = scales.scale;
    for (int64_t k = 0; k < depth; k += 2) {
      const __m512 y0 = _mm512_mul_ps(_mm512_loadu_ps(panels + k * kPanel), scales.scale);
      const __m512 y1 = _mm512_mul_ps(_mm512_loadu_ps(panels + (k + 1) * kPanel), second);
      second = _mm512_xor_ps(second, _mm512_set1_ps(-0.0f));
      _mm512_storeu_ps(panels + k * kPanel, y0);
      _mm512_storeu_ps(panels + (k + 1) * kPanel, y1);
      pairs = _mm512_fmadd_ps(y0, y1, pairs);
      squares = _mm512_fmadd_ps(y0, y0, squares);
      others = _mm512_fmadd_ps(y1, y1, others);
    }
    _mm512_storeu_ps(facts, pairs);
    _mm512_storeu_ps(facts + kPanel, _mm512_mask_mov_ps(_mm512_add_ps(squares, others), sparse,
                                                        _mm512_set1_ps(kNan)));
    _mm512_storeu_ps(facts + 2 * kPanel, scales.unscale);
    facts += kPanelFacts * kPanel;
  }
}

// Sums over all pairs of (x0 + y1) (x1 + y0), of kPairRows rows and two panels: [row][panel][16].
//
// In assembler, because the processor must be given additions and multiplications in turns. Every
// other second addition is done by a unit for multiplications, as a product with one: three
// instructions of each kind make two pairs. Broadcasts are part of additions; on their own they
// take a unit. A product comes one addition later than its factors are begun, so that the last one
// of a pair of k stands in the next.
#define SPYRE_ROW(x, sum0, sum1, before)                           \
  "vaddps " x                                                      \
  "%{1to16%}, %%zmm18, %%zmm21\n" /* x0 + y1 of the first panel */ \
  "vfmadd231ps %%zmm23, %%zmm24, %%" before                        \
  "\n"                                                             \
  "vaddps 4" x                                                     \
  "%{1to16%}, %%zmm16, %%zmm22\n" /* x1 + y0 */                    \
  "vaddps " x                                                      \
  "%{1to16%}, %%zmm19, %%zmm23\n" /* of the second panel */        \
  "vfmadd231ps %%zmm21, %%zmm22, %%" sum0                          \
  "\n"                                                             \
  "vmovaps %%zmm17, %%zmm24\n"                                     \
  "vfmadd231ps 4" x "%{1to16%}, %%zmm20, %%zmm24\n"

void sum_pairs(const float* a, int64_t lda, const float* panel0, const float* panel1, float* sums,
               int64_t pairs) {
  const float one = 1.0f;
  const int64_t row = lda * static_cast<int64_t>(sizeof(float)), row3 = 3 * row;
  const float* a4 = a + 4 * lda;
  asm volatile(
      "vbroadcastss %[one], %%zmm20\n"
      "vpxord %%zmm0, %%zmm0, %%zmm0\n"
      "vpxord %%zmm1, %%zmm1, %%zmm1\n"
      "vpxord %%zmm2, %%zmm2, %%zmm2\n"
      "vpxord %%zmm3, %%zmm3, %%zmm3\n"
      "vpxord %%zmm4, %%zmm4, %%zmm4\n"
      "vpxord %%zmm5, %%zmm5, %%zmm5\n"
      "vpxord %%zmm6, %%zmm6, %%zmm6\n"
      "vpxord %%zmm7, %%zmm7, %%zmm7\n"
      "vpxord %%zmm8, %%zmm8, %%zmm8\n"
      "vpxord %%zmm9, %%zmm9, %%zmm9\n"
      "vpxord %%zmm10, %%zmm10, %%zmm10\n"
      "vpxord %%zmm11, %%zmm11, %%zmm11\n"
      "vpxord %%zmm12, %%zmm12, %%zmm12\n"
      "vpxord %%zmm13, %%zmm13, %%zmm13\n"
      "vpxord %%zmm14, %%zmm14, %%zmm14\n"
      "vpxord %%zmm15, %%zmm15, %%zmm15\n"
      "vpxord %%zmm23, %%zmm23, %%zmm23\n"
      "vpxord %%zmm24, %%zmm24, %%zmm24\n"
      ".p2align 5\n"
      "1:\n"
      "vmovups (%[b0]), %%zmm16\n"
      "vmovups 64(%[b0]), %%zmm18\n"
      "vmovups (%[b1]), %%zmm17\n"
      "vmovups 64(%[b1]), %%zmm19\n"
      SPYRE_ROW("(%[a])", "zmm0", "zmm1", "zmm15")
      SPYRE_ROW("(%[a],%[row])", "zmm2", "zmm3", "zmm1")
      SPYRE_ROW("(%[a],%[row],2)", "zmm4", "zmm5", "zmm3")
      SPYRE_ROW("(%[a],%[row3])", "zmm6", "zmm7", "zmm5")
      SPYRE_ROW("(%[a4])", "zmm8", "zmm9", "zmm7")
      SPYRE_ROW("(%[a4],%[row])", "zmm10", "zmm11", "zmm9")
      SPYRE_ROW("(%[a4],%[row],2)", "zmm12", "zmm13", "zmm11")
      SPYRE_ROW("(%[a4],%[row3])", "zmm14", "zmm15", "zmm13")
      "add $8, %[a]\n"
      "add $8, %[a4]\n"
      "add $128, %[b0]\n"
      "add $128, %[b1]\n"
      "dec %[pairs]\n"
      "jnz 1b\n"
      "vfmadd231ps %%zmm23, %%zmm24, %%zmm15\n"
      "vmovups %%zmm0, (%[sums])\n"
      "vmovups %%zmm1, 64(%[sums])\n"
      "vmovups %%zmm2, 128(%[sums])\n"
      "vmovups %%zmm3, 192(%[sums])\n"
      "vmovups %%zmm4, 256(%[sums])\n"
      "vmovups %%zmm5, 320(%[sums])\n"
      "vmovups %%zmm6, 384(%[sums])\n"
      "vmovups %%zmm7, 448(%[sums])\n"
      "vmovups %%zmm8, 512(%[sums])\n"
      "vmovups %%zmm9, 576(%[sums])\n"
      "vmovups %%zmm10, 640(%[sums])\n"
      "vmovups %%zmm11, 704(%[sums])\n"
      "vmovups %%zmm12, 768(%[sums])\n"
      "vmovups %%zmm13, 832(%[sums])\n"
      "vmovups %%zmm14, 896(%[sums])\n"
      "vmovups %%zmm15, 960(%[sums])\n"
      : [a] "+r"(a), [a4] "+r"(a4), [b0] "+r"(panel0), [b1] "+r"(panel1), [pairs] "+r"(pairs)
      : [row] "r"(row), [row3] "r"(row3), [sums] "r"(sums), [one] "m"(one)
      : "memory", "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8",
        "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18",
        "zmm19", "zmm20", "zmm21", "zmm22", "zmm23", "zmm24");
}

// The sums term by term, in the same form.
[[gnu::noinline]] void sum_terms(const float* a, int64_t lda, const float* panel0,
                                 const float* panel1, float* sums, int64_t depth) {
  __m512 sum[kPairRows][kPairPanels];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kPairRows; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (int64_t k = 0; k < depth; ++k) {
    const __m512 y0 = _mm512_loadu_ps(panel0 + k * kPanel);
    const __m512 y1 = _mm512_loadu_ps(panel1 + k * kPanel);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kPairRows; ++i) {
      const __m512 x = _mm512_set1_ps(a[i * lda + k]);
      sum[i][0] = _mm512_fmadd_ps(x, y0, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(x, y1, sum[i][1]);
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kPairRows; ++i) {
    _mm512_storeu_ps(sums + (2 * i) * kPanel, sum[i][0]);
    _mm512_storeu_ps(sums + (2 * i + 1) * kPanel, sum[i][1]);
  }
}

SPYRE_INLINE __m512 one_nan(__m512 value) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), nan);
}

// kPairRows rows and two panels, of which `rows` and `panels` are wanted.
struct Block {
  const float* a;
  int64_t lda, rows;
  const float* b[kPairPanels];
  int64_t panels;
  const float* facts;  // of the panels
  int64_t depth;
};

SPYRE_INLINE const RowFacts& facts_of(const float* row, int64_t lda) {
  return *reinterpret_cast<const RowFacts*>(row + lda - kRowFacts);
}

// False where all rows or all columns are too sparse, as those of padding are.
bool may_pair(const Block& block) {
  bool rows = false;
  for (int64_t i = 0; i < block.rows; ++i) {
    const float squares = facts_of(block.a + i * block.lda, block.lda).squares;
    rows |= squares == squares;
  }
  __mmask16 columns = 0;
  for (int64_t p = 0; p < block.panels; ++p) {
    const __m512 squares = _mm512_loadu_ps(block.facts + (p * kPanelFacts + 1) * kPanel);
    columns |= _mm512_cmp_ps_mask(squares, squares, _CMP_ORD_Q);
  }
  return rows && columns != 0;
}

void multiply_block(const Block& block, float* c, int64_t ldc, Continuation continuation) {
  const auto& [a, lda, rows, b, panels, facts, depth] = block;
  constexpr int64_t kSums = kPairRows * kPairPanels * kPanel;
  alignas(64) float sums[kSums], terms[kSums];
  bool has_terms = false;
  const auto need_terms = [&] {
    if (!has_terms) sum_terms(a, lda, b[0], b[1], terms, depth);
    has_terms = true;
  };
  if (may_pair(block)) {
    sum_pairs(a, lda, b[0], b[1], sums, depth / 2);
  } else {
    need_terms();
  }
  const float* from = has_terms ? terms : sums;
  for (int64_t p = 0; p < panels; ++p) {
    const float* known = facts + p * kPanelFacts * kPanel;
    const __m512 y_pairs = _mm512_loadu_ps(known);
    const __m512 y_squares = _mm512_loadu_ps(known + kPanel);
    const __m512 y_unscale = _mm512_loadu_ps(known + 2 * kPanel);
    for (int64_t i = 0; i < rows; ++i) {
      const RowFacts& row = facts_of(a + i * lda, lda);
      const int64_t at = (i * kPairPanels + p) * kPanel;
      const __m512 x_squares = _mm512_set1_ps(row.squares);
      __m512 sum = _mm512_sub_ps(_mm512_loadu_ps(from + at),
                                 _mm512_add_ps(_mm512_set1_ps(row.pairs), y_pairs));
      const __m512 most = _mm512_max_ps(x_squares, y_squares);
      const __m512 least = _mm512_min_ps(x_squares, y_squares);
      __mmask16 good = _mm512_cmp_ps_mask(x_squares, y_squares, _CMP_ORD_Q);
      good = _mm512_mask_cmp_ps_mask(good, most, _mm512_mul_ps(least, _mm512_set1_ps(kDifferent)),
                                     _CMP_LE_OQ);
      good = _mm512_mask_cmp_ps_mask(good, _mm512_abs_ps(sum),
                                     _mm512_mul_ps(most, _mm512_set1_ps(kSmall)), _CMP_GE_OQ);
      if (__builtin_expect(good != 0xffff, 0)) {
        need_terms();
        sum = _mm512_mask_blend_ps(good, _mm512_loadu_ps(terms + at), sum);
      }
      const __m512 unscale = _mm512_mul_ps(_mm512_set1_ps(row.unscale), y_unscale);
      float* to = c + i * ldc + p * kPanel;
      const __m512 result = continuation.first ? _mm512_mul_ps(sum, unscale)
                                               : _mm512_fmadd_ps(sum, unscale, _mm512_loadu_ps(to));
      _mm512_storeu_ps(to, continuation.last ? one_nan(result) : result);
    }
  }
}

void multiply(const float* a, int64_t lda, const float* b, float* c, int64_t ldc, int64_t rows,
              int64_t columns, int64_t depth, Continuation continuation) {
  for (int64_t n = 0; n < columns; n += kPairPanels * kPanel) {
    const int64_t panels = std::min<int64_t>((columns - n) / kPanel, kPairPanels);
    const float* panel = b + n * depth;
    const float* last = panel + (panels - 1) * kPanel * depth;
    const float* facts = b + columns * depth + n * kPanelFacts;
    for (int64_t i = 0; i < rows; i += kPairRows) {
      multiply_block(
          {a + i * lda, lda, std::min(kPairRows, rows - i), {panel, last}, panels, facts, depth},
          c + i * ldc + n, ldc, continuation);
    }
  }
}

}  // namespace

extern const PairKernels kPairKernels = {prepare_rows, prepare_panels, multiply};

}  // namespace spyre::card::simd_avx512

SPYRE_TARGET_END

#else

namespace spyre::card {
bool pairs_pay() { return false; }
const PairKernels* pair_kernels(Simd) { return nullptr; }
}  // namespace spyre::card

#endif
