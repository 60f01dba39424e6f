// SIMD in one header: vectors of 16 elements and what plain operators lack.
//
// Arithmetic, shifts, comparisons and masks are the operators of GNU vectors, which every compiler
// we build with lowers to what the target has. This header adds the rest in two forms with the same
// bits: AVX2 (for files that define SPYRE_SIMD_AVX2 and set the target before they include it) and
// portable. Each form lives in a namespace of its own, so that one program can hold both. A third
// one (SPYRE_SIMD_RECORDED) computes nothing and writes down what is computed: the JIT has it, in a
// header that takes the place of this one (jit/simd_recorded.h).
//
// Example: U16x16 v = load<U16x16>(p); store(q, (v + 1) >> 1);
#pragma once

#if !defined(SPYRE_SIMD_RECORDED)

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(SPYRE_SIMD_AVX2)
#include <immintrin.h>
#define SPYRE_SIMD_NAMESPACE simd_avx2
#else
#define SPYRE_SIMD_NAMESPACE simd_portable
#endif

// Vectors are passed by reference and everything is inlined: without AVX, passing 32-byte vectors
// by value would depend on the compiler's version.
#pragma GCC diagnostic ignored "-Wpsabi"
#define SPYRE_SIMD_INLINE [[gnu::always_inline]] inline
#define SPYRE_SIMD_LAMBDA __attribute__((always_inline))

namespace spyre::card::SPYRE_SIMD_NAMESPACE {

typedef uint8_t U8x16 __attribute__((vector_size(16)));
typedef uint8_t U8x32 __attribute__((vector_size(32)));
typedef int16_t I16x16 __attribute__((vector_size(32)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));
typedef int32_t I32x8 __attribute__((vector_size(32)));
typedef uint32_t U32x8 __attribute__((vector_size(32)));
typedef float F32x8 __attribute__((vector_size(32)));
typedef float F32x4 __attribute__((vector_size(16)));
typedef double F64x4 __attribute__((vector_size(32)));

// 16 elements of 32 bits are two vectors.
template <class V>
struct Pair {
  V first, second;
};

template <class V>
SPYRE_SIMD_INLINE V load(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

template <class V>
SPYRE_SIMD_INLINE void store(void* to, const V& value) {
  std::memcpy(to, &value, sizeof(V));
}

// A pair one by one: as a whole it would pass through the stack.
template <>
SPYRE_SIMD_INLINE Pair<U32x8> load<Pair<U32x8> >(const void* from) {
  const auto* bytes = static_cast<const std::byte*>(from);
  return {load<U32x8>(bytes), load<U32x8>(bytes + 32)};
}
template <>
SPYRE_SIMD_INLINE void store<Pair<U32x8> >(void* to, const Pair<U32x8>& value) {
  auto* bytes = static_cast<std::byte*>(to);
  store(bytes, value.first);
  store(bytes + 32, value.second);
}

template <class To, class From>
SPYRE_SIMD_INLINE To bits(const From& value) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)value;  // a cast between vectors keeps the bits
}

#if defined(SPYRE_SIMD_AVX2)

// Writes past the caches; `to` is aligned to 32 bytes. fence() makes such writes visible to others.
SPYRE_SIMD_INLINE void stream(void* to, const U8x32& value) {
  _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)value);
}
SPYRE_SIMD_INLINE void fence() { _mm_sfence(); }

// Of a mask, whose lanes are all ones or all zeros.
SPYRE_SIMD_INLINE bool all(const I16x16& mask) {
  return _mm256_testc_si256((__m256i)mask, _mm256_set1_epi16(-1));
}
// Unsigned. average: (a + b + 1) / 2.
SPYRE_SIMD_INLINE U16x16 min(const U16x16& a, const U16x16& b) {
  return (U16x16)_mm256_min_epu16((__m256i)a, (__m256i)b);
}
SPYRE_SIMD_INLINE U16x16 average(const U16x16& a, const U16x16& b) {
  return (U16x16)_mm256_avg_epu16((__m256i)a, (__m256i)b);
}
SPYRE_SIMD_INLINE I16x16 min(const I16x16& a, const I16x16& b) {
  return (I16x16)_mm256_min_epi16((__m256i)a, (__m256i)b);
}
SPYRE_SIMD_INLINE I16x16 max(const I16x16& a, const I16x16& b) {
  return (I16x16)_mm256_max_epi16((__m256i)a, (__m256i)b);
}

// 32 to 16 bits, clamped to what 16 bits hold.
SPYRE_SIMD_INLINE I16x16 narrow(const Pair<I32x8>& wide) {
  const __m256i packed = _mm256_packs_epi32((__m256i)wide.first, (__m256i)wide.second);
  return (I16x16)_mm256_permute4x64_epi64(packed, 0xd8);
}

// narrow in two steps, for what is computed from several: unspread(f(narrow_spread(a), ...)).
SPYRE_SIMD_INLINE I16x16 narrow_spread(const Pair<I32x8>& wide) {
  return (I16x16)_mm256_packs_epi32((__m256i)wide.first, (__m256i)wide.second);
}
SPYRE_SIMD_INLINE U16x16 unspread(const U16x16& value) {
  return (U16x16)_mm256_permute4x64_epi64((__m256i)value, 0xd8);
}

// 32 to 16 bits, signed to unsigned: clamped to what unsigned 16 bits hold.
SPYRE_SIMD_INLINE U16x16 narrow_unsigned(const Pair<I32x8>& wide) {
  const __m256i packed = _mm256_packus_epi32((__m256i)wide.first, (__m256i)wide.second);
  return (U16x16)_mm256_permute4x64_epi64(packed, 0xd8);
}

// low + (high << 16) in each of 16 lanes.
SPYRE_SIMD_INLINE Pair<U32x8> join(const U16x16& low, const U16x16& high) {
  const __m256i l = _mm256_permute4x64_epi64((__m256i)low, 0xd8);
  const __m256i h = _mm256_permute4x64_epi64((__m256i)high, 0xd8);
  return {(U32x8)_mm256_unpacklo_epi16(l, h), (U32x8)_mm256_unpackhi_epi16(l, h)};
}

// The same in two steps, for lanes that are made of one vector: join_spread(f(s), g(s)) with s =
// spread(v) is join(f(v), g(v)) for functions of single lanes.
SPYRE_SIMD_INLINE U16x16 spread(const U16x16& value) {
  return (U16x16)_mm256_permute4x64_epi64((__m256i)value, 0xd8);
}
SPYRE_SIMD_INLINE Pair<U32x8> join_spread(const U16x16& low, const U16x16& high) {
  return {(U32x8)_mm256_unpacklo_epi16((__m256i)low, (__m256i)high),
          (U32x8)_mm256_unpackhi_epi16((__m256i)low, (__m256i)high)};
}

SPYRE_SIMD_INLINE U16x16 widen(const U8x16& bytes) {
  return (U16x16)_mm256_cvtepu8_epi16((__m128i)bytes);
}
// 16 to 8 bits; every lane is below 256.
SPYRE_SIMD_INLINE U8x16 narrow_bytes(const U16x16& wide) {
  const __m256i v = (__m256i)wide;
  return (U8x16)_mm_packus_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

// IEEE half. To half: nearest, ties to even. NaN keeps its sign and upper payload, quieted.
SPYRE_SIMD_INLINE Pair<F32x8> half_to_float(const U16x16& half) {
  const __m256i v = (__m256i)half;
  return {(F32x8)_mm256_cvtph_ps(_mm256_castsi256_si128(v)),
          (F32x8)_mm256_cvtph_ps(_mm256_extracti128_si256(v, 1))};
}
SPYRE_SIMD_INLINE U16x16 float_to_half(const Pair<F32x8>& value) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return (U16x16)_mm256_set_m128i(_mm256_cvtps_ph((__m256)value.second, kNearestEven),
                                  _mm256_cvtps_ph((__m256)value.first, kNearestEven));
}

// a * b + c, rounded once.
SPYRE_SIMD_INLINE F32x8 fma(const F32x8& a, const F32x8& b, const F32x8& c) {
  return (F32x8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
SPYRE_SIMD_INLINE F64x4 fma(const F64x4& a, const F64x4& b, const F64x4& c) {
  return (F64x4)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
SPYRE_SIMD_INLINE F32x8 sqrt(const F32x8& a) { return (F32x8)_mm256_sqrt_ps((__m256)a); }
// a > b ? a : b and a < b ? a : b: the second operand when one is NaN or both are equal.
SPYRE_SIMD_INLINE F32x8 max(const F32x8& a, const F32x8& b) {
  return (F32x8)_mm256_max_ps((__m256)a, (__m256)b);
}
SPYRE_SIMD_INLINE F32x8 min(const F32x8& a, const F32x8& b) {
  return (F32x8)_mm256_min_ps((__m256)a, (__m256)b);
}
SPYRE_SIMD_INLINE I32x8 max(const I32x8& a, const I32x8& b) {
  return (I32x8)_mm256_max_epi32((__m256i)a, (__m256i)b);
}
SPYRE_SIMD_INLINE I32x8 min(const I32x8& a, const I32x8& b) {
  return (I32x8)_mm256_min_epi32((__m256i)a, (__m256i)b);
}
SPYRE_SIMD_INLINE U32x8 min(const U32x8& a, const U32x8& b) {
  return (U32x8)_mm256_min_epu32((__m256i)a, (__m256i)b);
}
// By a mask, whose lanes are all ones or all zeros.
SPYRE_SIMD_INLINE F32x8 select(const I32x8& mask, const F32x8& yes, const F32x8& no) {
  return (F32x8)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
}
SPYRE_SIMD_INLINE I32x8 select(const I32x8& mask, const I32x8& yes, const I32x8& no) {
  return (I32x8)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, (__m256i)mask);
}
SPYRE_SIMD_INLINE bool any(const I32x8& mask) {
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
}
SPYRE_SIMD_INLINE F32x8 floor(const F32x8& a) { return (F32x8)_mm256_floor_ps((__m256)a); }
SPYRE_SIMD_INLINE F32x8 ceil(const F32x8& a) { return (F32x8)_mm256_ceil_ps((__m256)a); }
SPYRE_SIMD_INLINE F32x8 trunc(const F32x8& a) {
  return (F32x8)_mm256_round_ps((__m256)a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
SPYRE_SIMD_INLINE F32x8 round_even(const F32x8& a) {
  return (F32x8)_mm256_round_ps((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Toward zero; what does not fit, and NaN, is the smallest integer.
SPYRE_SIMD_INLINE I32x8 to_int(const F32x8& a) { return (I32x8)_mm256_cvttps_epi32((__m256)a); }

SPYRE_SIMD_INLINE F32x8 to_float(const I32x8& a) { return (F32x8)_mm256_cvtepi32_ps((__m256i)a); }

// The smallest and the largest lane.
SPYRE_SIMD_INLINE uint16_t least_of(const U16x16& a) {
  const __m256i v = (__m256i)a;
  const __m128i half = _mm_min_epu16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(half)));
}
SPYRE_SIMD_INLINE uint16_t most_of(const U16x16& a) { return static_cast<uint16_t>(~least_of(~a)); }
SPYRE_SIMD_INLINE uint32_t least_of(const U32x8& a) {
  const __m256i v = (__m256i)a;
  __m128i m = _mm_min_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_min_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_min_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}
SPYRE_SIMD_INLINE uint32_t most_of(const U32x8& a) { return ~least_of(~a); }

// Transposes of small blocks; pitches in bytes. 16 rows of 8 elements of 16 bits become 8 rows of
// 16: each half of the vectors transposes 8 rows.
SPYRE_SIMD_INLINE void transpose16x8_16(std::byte* to, ptrdiff_t to_pitch, const std::byte* from,
                                        ptrdiff_t from_pitch) {
  __m256i r[8], s[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const auto* upper = reinterpret_cast<const __m128i*>(from + i * from_pitch);
    const auto* lower = reinterpret_cast<const __m128i*>(from + (i + 8) * from_pitch);
    r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(upper)),
                                   _mm_loadu_si128(lower), 1);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 2; ++i) {  // columns 0-1, 2-3, 4-5, 6-7 of four rows
    r[4 * i] = _mm256_unpacklo_epi32(s[4 * i], s[4 * i + 2]);
    r[4 * i + 1] = _mm256_unpackhi_epi32(s[4 * i], s[4 * i + 2]);
    r[4 * i + 2] = _mm256_unpacklo_epi32(s[4 * i + 1], s[4 * i + 3]);
    r[4 * i + 3] = _mm256_unpackhi_epi32(s[4 * i + 1], s[4 * i + 3]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 2 * i * to_pitch),
                        _mm256_unpacklo_epi64(r[i], r[i + 4]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (2 * i + 1) * to_pitch),
                        _mm256_unpackhi_epi64(r[i], r[i + 4]));
  }
}

SPYRE_SIMD_INLINE void transpose8x8_32(std::byte* to, ptrdiff_t to_pitch, const std::byte* from,
                                       ptrdiff_t from_pitch) {
  __m256 r[8], s[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(from + i * from_pitch));
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 2; ++i) {  // four columns of four rows, in each half of the vector
    r[4 * i] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0xee);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to + i * to_pitch),
                     _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(reinterpret_cast<float*>(to + (i + 4) * to_pitch),
                     _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

#else

SPYRE_SIMD_INLINE void stream(void* to, const U8x32& value) { store(to, value); }
SPYRE_SIMD_INLINE void fence() {}

SPYRE_SIMD_INLINE bool all(const I16x16& mask) {
  typedef int64_t I64x4 __attribute__((vector_size(32)));
  const I64x4 m = bits<I64x4>(mask);
  return (m[0] & m[1] & m[2] & m[3]) == -1;
}
SPYRE_SIMD_INLINE U16x16 min(const U16x16& a, const U16x16& b) {
  const U16x16 less = (U16x16)(a < b);
  return (a & less) | (b & ~less);
}
SPYRE_SIMD_INLINE U16x16 average(const U16x16& a, const U16x16& b) {
  return (a | b) - ((a ^ b) >> 1);
}
SPYRE_SIMD_INLINE I16x16 min(const I16x16& a, const I16x16& b) {
  const I16x16 less = a < b;
  return (a & less) | (b & ~less);
}
SPYRE_SIMD_INLINE I16x16 max(const I16x16& a, const I16x16& b) {
  const I16x16 less = a < b;
  return (b & less) | (a & ~less);
}

SPYRE_SIMD_INLINE I16x16 narrow(const Pair<I32x8>& wide) {
  I16x16 result;
  for (int i = 0; i < 16; ++i) {
    const int32_t value = i < 8 ? wide.first[i] : wide.second[i - 8];
    result[i] = static_cast<int16_t>(value < -0x8000 ? -0x8000 : value > 0x7fff ? 0x7fff : value);
  }
  return result;
}

SPYRE_SIMD_INLINE U16x16 narrow_unsigned(const Pair<I32x8>& wide) {
  U16x16 result;
  for (int i = 0; i < 16; ++i) {
    const int32_t value = i < 8 ? wide.first[i] : wide.second[i - 8];
    result[i] = static_cast<uint16_t>(value < 0 ? 0 : value > 0xffff ? 0xffff : value);
  }
  return result;
}

SPYRE_SIMD_INLINE Pair<U32x8> join(const U16x16& low, const U16x16& high) {
  Pair<U32x8> result;
  for (int i = 0; i < 8; ++i) {
    result.first[i] = low[i] | static_cast<uint32_t>(high[i]) << 16;
    result.second[i] = low[i + 8] | static_cast<uint32_t>(high[i + 8]) << 16;
  }
  return result;
}

SPYRE_SIMD_INLINE I16x16 narrow_spread(const Pair<I32x8>& wide) { return narrow(wide); }
SPYRE_SIMD_INLINE U16x16 unspread(const U16x16& value) { return value; }
SPYRE_SIMD_INLINE U16x16 spread(const U16x16& value) { return value; }
SPYRE_SIMD_INLINE Pair<U32x8> join_spread(const U16x16& low, const U16x16& high) {
  return join(low, high);
}

SPYRE_SIMD_INLINE U16x16 widen(const U8x16& bytes) {
  return __builtin_convertvector(bytes, U16x16);
}
SPYRE_SIMD_INLINE U8x16 narrow_bytes(const U16x16& wide) {
  return __builtin_convertvector(wide, U8x16);
}

// Subnormal halves go through an exact float product whose result is normal: no rounding, and the
// processor's flush-to-zero modes do not matter.
SPYRE_SIMD_INLINE float one_half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  uint32_t result;
  if (magnitude > 0x7c00) {
    result = 0x7fc00000 | magnitude << 13;
  } else if (magnitude == 0x7c00) {
    result = 0x7f800000;
  } else if (magnitude >= 0x0400) {
    result = (magnitude << 13) + (112u << 23);
  } else {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&result, &value, 4);
  }
  result |= sign;
  float value;
  std::memcpy(&value, &result, 4);
  return value;
}

SPYRE_SIMD_INLINE uint16_t one_float_to_half(float value) {
  uint32_t u;
  std::memcpy(&u, &value, 4);
  const uint32_t sign = u >> 16 & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (u >> 13 & 0x3ff));
  if (u >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 rounds to infinity
  if (u < 0x38800000) {                                              // below 2^-14: subnormal
    // The units of 0.5 and of subnormal halves are both 2^-24, so the sum rounds as the half does.
    float magnitude;
    std::memcpy(&magnitude, &u, 4);
    magnitude += 0.5f;
    std::memcpy(&u, &magnitude, 4);
    return static_cast<uint16_t>(sign | (u - 0x3f000000));
  }
  u += 0xfff + (u >> 13 & 1);
  return static_cast<uint16_t>(sign | ((u >> 13) - (112u << 10)));
}

SPYRE_SIMD_INLINE Pair<F32x8> half_to_float(const U16x16& half) {
  Pair<F32x8> result;
  for (int i = 0; i < 8; ++i) {
    result.first[i] = one_half_to_float(half[i]);
    result.second[i] = one_half_to_float(half[i + 8]);
  }
  return result;
}
SPYRE_SIMD_INLINE U16x16 float_to_half(const Pair<F32x8>& value) {
  U16x16 result;
  for (int i = 0; i < 8; ++i) {
    result[i] = one_float_to_half(value.first[i]);
    result[i + 8] = one_float_to_half(value.second[i]);
  }
  return result;
}

SPYRE_SIMD_INLINE F32x8 fma(const F32x8& a, const F32x8& b, const F32x8& c) {
  F32x8 result;
  for (int i = 0; i < 8; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return result;
}
SPYRE_SIMD_INLINE F64x4 fma(const F64x4& a, const F64x4& b, const F64x4& c) {
  F64x4 result;
  for (int i = 0; i < 4; ++i) result[i] = __builtin_fma(a[i], b[i], c[i]);
  return result;
}
SPYRE_SIMD_INLINE F32x8 sqrt(const F32x8& a) {
  F32x8 result;
  for (int i = 0; i < 8; ++i) result[i] = __builtin_sqrtf(a[i]);
  return result;
}
SPYRE_SIMD_INLINE F32x8 select(const I32x8& mask, const F32x8& yes, const F32x8& no) {
  return (F32x8)(((I32x8)yes & mask) | ((I32x8)no & ~mask));
}
SPYRE_SIMD_INLINE I32x8 select(const I32x8& mask, const I32x8& yes, const I32x8& no) {
  return (yes & mask) | (no & ~mask);
}
SPYRE_SIMD_INLINE F32x8 max(const F32x8& a, const F32x8& b) { return select(a > b, a, b); }
SPYRE_SIMD_INLINE F32x8 min(const F32x8& a, const F32x8& b) { return select(a < b, a, b); }
SPYRE_SIMD_INLINE I32x8 max(const I32x8& a, const I32x8& b) { return select(a > b, a, b); }
SPYRE_SIMD_INLINE I32x8 min(const I32x8& a, const I32x8& b) { return select(a < b, a, b); }
SPYRE_SIMD_INLINE U32x8 min(const U32x8& a, const U32x8& b) {
  return (U32x8)select((I32x8)(a < b), (I32x8)a, (I32x8)b);
}
SPYRE_SIMD_INLINE bool any(const I32x8& mask) {
  typedef int64_t I64x4 __attribute__((vector_size(32)));
  const I64x4 m = bits<I64x4>(mask);
  return (m[0] | m[1] | m[2] | m[3]) != 0;
}
SPYRE_SIMD_INLINE F32x8 floor(const F32x8& a) {
  F32x8 result;
  for (int i = 0; i < 8; ++i) result[i] = __builtin_floorf(a[i]);
  return result;
}
SPYRE_SIMD_INLINE F32x8 ceil(const F32x8& a) {
  F32x8 result;
  for (int i = 0; i < 8; ++i) result[i] = __builtin_ceilf(a[i]);
  return result;
}
SPYRE_SIMD_INLINE F32x8 trunc(const F32x8& a) {
  F32x8 result;
  for (int i = 0; i < 8; ++i) result[i] = __builtin_truncf(a[i]);
  return result;
}
SPYRE_SIMD_INLINE F32x8 round_even(const F32x8& a) {
  F32x8 result;
  for (int i = 0; i < 8; ++i) result[i] = __builtin_nearbyintf(a[i]);
  return result;
}
SPYRE_SIMD_INLINE F32x8 to_float(const I32x8& a) { return __builtin_convertvector(a, F32x8); }
SPYRE_SIMD_INLINE I32x8 to_int(const F32x8& a) {
  I32x8 result;
  for (int i = 0; i < 8; ++i) {
    const bool fits = a[i] >= -0x1p31f && a[i] < 0x1p31f;
    result[i] = fits ? static_cast<int32_t>(a[i]) : INT32_MIN;
  }
  return result;
}

template <class V>
SPYRE_SIMD_INLINE auto least_of(const V& a) {
  auto least = a[0];
  for (size_t i = 1; i < sizeof(V) / sizeof(least); ++i) least = a[i] < least ? a[i] : least;
  return least;
}
template <class V>
SPYRE_SIMD_INLINE auto most_of(const V& a) {
  auto most = a[0];
  for (size_t i = 1; i < sizeof(V) / sizeof(most); ++i) most = a[i] > most ? a[i] : most;
  return most;
}

template <class T, int kRows>
SPYRE_SIMD_INLINE void transpose_block(std::byte* to, ptrdiff_t to_pitch, const std::byte* from,
                                       ptrdiff_t from_pitch) {
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < kRows; ++i) {
      std::memcpy(to + j * to_pitch + i * sizeof(T), from + i * from_pitch + j * sizeof(T),
                  sizeof(T));
    }
  }
}
SPYRE_SIMD_INLINE void transpose16x8_16(std::byte* to, ptrdiff_t to_pitch, const std::byte* from,
                                        ptrdiff_t from_pitch) {
  transpose_block<uint16_t, 16>(to, to_pitch, from, from_pitch);
}
SPYRE_SIMD_INLINE void transpose8x8_32(std::byte* to, ptrdiff_t to_pitch, const std::byte* from,
                                       ptrdiff_t from_pitch) {
  transpose_block<uint32_t, 8>(to, to_pitch, from, from_pitch);
}

#endif

}  // namespace spyre::card::SPYRE_SIMD_NAMESPACE

// What unpacking in matrix products needs: join with its lanes in whatever order is cheapest.
namespace spyre::card::SPYRE_SIMD_NAMESPACE {

#if defined(SPYRE_SIMD_AVX2)

// `value` where `number` is positive, 0 where it is 0; it is never negative.
SPYRE_SIMD_INLINE I16x16 keep_at_numbers(const I16x16& value, const I16x16& number) {
  return (I16x16)_mm256_sign_epi16((__m256i)value, (__m256i)number);
}
SPYRE_SIMD_INLINE Pair<U32x8> join_swapped(const U16x16& low, const U16x16& high) {
  return {(U32x8)_mm256_unpacklo_epi16((__m256i)low, (__m256i)high),
          (U32x8)_mm256_unpackhi_epi16((__m256i)low, (__m256i)high)};
}
// value << 14 and value >> 2. Products, since shifts compete with shuffles for the same units; the
// compiler must not see that the factor is a power of two.
SPYRE_SIMD_INLINE Pair<I16x16> shift_apart(const I16x16& value) {
  __m256i factor = _mm256_set1_epi16(0x4000);
  asm("" : "+x"(factor));
  return {(I16x16)_mm256_mullo_epi16((__m256i)value, factor),
          (I16x16)_mm256_mulhi_epi16((__m256i)value, factor)};
}
// From the order of join_swapped to that of join, and back.
SPYRE_SIMD_INLINE Pair<F32x8> swap_order(const Pair<F32x8>& pair) {
  return {(F32x8)_mm256_permute2f128_ps((__m256)pair.first, (__m256)pair.second, 0x20),
          (F32x8)_mm256_permute2f128_ps((__m256)pair.first, (__m256)pair.second, 0x31)};
}

#else

SPYRE_SIMD_INLINE I16x16 keep_at_numbers(const I16x16& value, const I16x16& number) {
  return value & (number != 0);
}
SPYRE_SIMD_INLINE Pair<U32x8> join_swapped(const U16x16& low, const U16x16& high) {
  return join(low, high);
}
SPYRE_SIMD_INLINE Pair<I16x16> shift_apart(const I16x16& value) {
  return {value << 14, value >> 2};
}
SPYRE_SIMD_INLINE Pair<F32x8> swap_order(const Pair<F32x8>& pair) { return pair; }

#endif

}  // namespace spyre::card::SPYRE_SIMD_NAMESPACE

#endif
