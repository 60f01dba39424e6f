// Elementary functions of float32 on 8 lanes, written against numerics/simd.h: within 1 to 2 units
// in the last place, special values as the C library has them. Included by tile/kernels.inl.
//
// Polynomials are those of the Cephes library where nothing else is said.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "numerics/simd.h"

namespace spyre::card::SPYRE_SIMD_NAMESPACE {
namespace {

// Minus, since 0.0 + -0.0 would be 0.0.
SPYRE_SIMD_INLINE F32x8 splat(float value) { return value - F32x8{}; }

SPYRE_SIMD_INLINE float float_of(uint32_t word) {
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

SPYRE_SIMD_INLINE F32x8 magnitude_of(const F32x8& x) {
  return bits<F32x8>(bits<I32x8>(x) & 0x7fffffff);
}
SPYRE_SIMD_INLINE F32x8 with_sign_of(const F32x8& magnitude, const F32x8& sign) {
  return bits<F32x8>(bits<I32x8>(magnitude) | (bits<I32x8>(sign) & INT32_MIN));
}

// coefficients from the highest power on
template <class... Rest>
SPYRE_SIMD_INLINE F32x8 polynomial(const F32x8& x, float highest, Rest... rest) {
  F32x8 sum = splat(highest);
  ((sum = fma(sum, x, splat(rest))), ...);
  return sum;
}

// 2^n for n in -126 ... 127; zero for -127, infinity for 128.
SPYRE_SIMD_INLINE F32x8 power_of_two(const I32x8& n) {
  return bits<F32x8>((bits<U32x8>(n) + 127u) << 23);
}

// x = n * ln 2 + rest, n a whole number; the result is exp(rest) - 1.
SPYRE_SIMD_INLINE F32x8 reduced_expm1(const F32x8& x, F32x8& n) {
  n = round_even(x * 1.44269504088896341f);
  F32x8 rest = fma(n, splat(-0.693359375f), x);
  rest = fma(n, splat(2.12194440e-4f), rest);
  const F32x8 p = polynomial(rest, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                             4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  return fma(rest * rest, p, rest);
}

// Beyond these limits the result is zero or infinity; NaN passes because it is the second operand.
SPYRE_SIMD_INLINE F32x8 exp(const F32x8& x) {
  F32x8 n;
  const F32x8 m = reduced_expm1(min(splat(89.0f), max(splat(-104.0f), x)), n);
  // In two steps: 2^n may be subnormal or too large while the result is neither.
  const I32x8 all = to_int(n), half = all >> 1;
  return (m + 1.0f) * power_of_two(half) * power_of_two(all - half);
}

SPYRE_SIMD_INLINE F32x8 expm1(const F32x8& x) {
  F32x8 n;
  const F32x8 m = reduced_expm1(min(splat(89.0f), max(splat(-30.0f), x)), n);
  // Half of 2^n, which itself may be too large.
  const F32x8 half = power_of_two(bits<I32x8>(bits<U32x8>(to_int(n)) - 1u));
  const F32x8 result = 2.0f * fma(half, m, half - 0.5f);
  return select(magnitude_of(x) < 0x1p-25f, x, result);
}

SPYRE_SIMD_INLINE F32x8 log(const F32x8& x) {
  // Subnormal numbers are scaled to normal ones.
  const I32x8 small = x < 0x1p-126f;
  const U32x8 scaled = bits<U32x8>(select(small, x * 0x1p23f, x));
  // x = 2^e * m with m in [sqrt(1/2), sqrt(2)); unsigned, because negative numbers wrap here.
  constexpr uint32_t kSqrtHalf = 0x3f3504f3;
  const I32x8 e = bits<I32x8>(scaled - kSqrtHalf) >> 23;
  const F32x8 f = bits<F32x8>(scaled - (bits<U32x8>(e) << 23)) - 1.0f;
  const F32x8 exponent = to_float(e + (small & -23));
  const F32x8 z = f * f;
  F32x8 y = polynomial(f, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                       1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
                       3.3333331174e-1f);
  y = fma(exponent, splat(-2.12194440e-4f), y * f * z);
  y = fma(z, splat(-0.5f), y);
  F32x8 result = fma(exponent, splat(0.693359375f), f + y);
  const F32x8 infinity = splat(__builtin_inff());
  result = select(x == infinity, x, result);
  result = select(x == 0.0f, -infinity, result);
  return select(x >= 0.0f, result, splat(__builtin_nanf("")));
}

// With u = 1 + x rounded: log(u) and the part of x that u lost.
SPYRE_SIMD_INLINE F32x8 log1p(const F32x8& x) {
  const F32x8 u = 1.0f + x;
  const F32x8 logarithm = log(u);
  const F32x8 result = logarithm + (x - (u - 1.0f)) / u;
  const I32x8 special = (u == 0.0f) | (u == __builtin_inff());
  return select(magnitude_of(x) < 0x1p-25f, x, select(special, logarithm, result));
}

SPYRE_SIMD_INLINE F32x8 tanh(const F32x8& x) {
  const F32x8 a = magnitude_of(x);
  const F32x8 z = x * x;
  const F32x8 p = polynomial(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                             1.33314422036e-1f, -3.33332819422e-1f);
  const F32x8 small = fma(p * z, x, x);
  const F32x8 large = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  return select(a < 0.625f, small, with_sign_of(large, x));
}

// N. Juffa's: a polynomial near zero, 1 - exp(polynomial) beyond.
SPYRE_SIMD_INLINE F32x8 erf(const F32x8& x) {
  const F32x8 a = magnitude_of(x), z = x * x;
  F32x8 r = polynomial(a, -1.72853470e-5f, 3.83197126e-4f);
  r = fma(r, z, polynomial(a, -3.88396438e-3f, 2.42546219e-2f));
  r = fma(r, a, splat(-1.06777877e-1f));
  r = fma(r, a, splat(-6.34846687e-1f));
  r = fma(r, a, splat(-1.28717512e-1f));
  const F32x8 large = 1.0f - exp(fma(r, a, -a));
  const F32x8 p = polynomial(z, -5.96761703e-4f, 4.99119423e-3f, -2.67681349e-2f, 1.12819925e-1f,
                             -3.76125336e-1f, 1.28379166e-1f);
  return select(a > 0.927734375f, with_sign_of(large, x), fma(p, x, x));
}

// The distribution function of the normal distribution: erfc(-x / sqrt 2) / 2, good to a few units
// in the last place also where it is tiny. The fit of erfc is that of Numerical Recipes (erfcc).
SPYRE_SIMD_INLINE F32x8 normal_cdf(const F32x8& any) {
  const F32x8 x = select(magnitude_of(any) > 40.0f, with_sign_of(splat(40.0f), any), any);
  const F32x8 a = magnitude_of(x) * 0.707106781186547524f;
  const F32x8 t = 1.0f / fma(a, splat(0.5f), splat(1.0f));
  const F32x8 p = polynomial(t, 0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                             -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f);
  // x * x / 2 in two parts: its rounding error would be one of the exponential.
  const F32x8 square = x * x * 0.5f;
  const F32x8 rest = fma(x * 0.5f, x, -square);
  const F32x8 tail = t * 0.5f * exp(p - rest) * exp(-square);
  // In the middle nothing cancels, and erf is closer than the fit.
  const F32x8 middle = fma(erf(x * 0.707106781186547524f), splat(0.5f), splat(0.5f));
  return select(magnitude_of(x) < 0.5f, middle, select(x > 0.0f, 1.0f - tail, tail));
}

// ---- For results of 16 bits: relative errors below 2^-19, a five-hundredth of half a unit of
// DLFloat16. Polynomials are minimax fits of the relative error.

// exp(rest) of sign * x = n * ln 2 + rest; the lowest bits of `shifted`, a sum with 1.5 * 2^23, are
// n. With sign -1 all odd terms change theirs, and no bit of the result does.
SPYRE_SIMD_INLINE F32x8 short_exp_of_rest(const F32x8& x, float sign, F32x8& shifted) {
  shifted = fma(x, splat(sign * 1.44269504088896341f), splat(0x1.8p23f));
  const F32x8 n = shifted - splat(0x1.8p23f);
  const F32x8 rest = fma(n, splat(sign * -0.693147180559945309f), x);
  return polynomial(rest, sign * 8.29765014e-3f, 4.19154204e-2f, sign * 1.66675746e-1f,
                    4.99988943e-1f, sign * 0.999999702f, 1.00000012f);
}

// Exponentials of any number; at the limits 2^n is zero and infinity.
struct AnyExponential {
  SPYRE_SIMD_INLINE static F32x8 of(const F32x8& any) {
    F32x8 shifted;
    const F32x8 x = min(splat(88.8f), max(splat(-88.0f), any));
    const F32x8 p = short_exp_of_rest(x, 1.0f, shifted);
    return p * power_of_two(bits<I32x8>(shifted));
  }
  SPYRE_SIMD_INLINE static F32x8 of_minus(const F32x8& x) { return of(-x); }
};

// The same bits for numbers of magnitudes up to 80, where n can be added to an exponent.
struct NearExponential {
  SPYRE_SIMD_INLINE static F32x8 scaled(const F32x8& p, const F32x8& shifted) {
    return bits<F32x8>(bits<U32x8>(p) + (bits<U32x8>(shifted) << 23));
  }
  SPYRE_SIMD_INLINE static F32x8 of(const F32x8& x) {
    F32x8 shifted;
    const F32x8 p = short_exp_of_rest(x, 1.0f, shifted);
    return scaled(p, shifted);
  }
  SPYRE_SIMD_INLINE static F32x8 of_minus(const F32x8& x) {
    F32x8 shifted;
    const F32x8 p = short_exp_of_rest(x, -1.0f, shifted);
    return scaled(p, shifted);
  }
};

SPYRE_SIMD_INLINE F32x8 short_exp(const F32x8& x) { return AnyExponential::of(x); }

template <class Exponential>
SPYRE_SIMD_INLINE F32x8 short_sigmoid(const F32x8& x) {
  return 1.0f / (1.0f + Exponential::of_minus(x));
}
template <class Exponential>
SPYRE_SIMD_INLINE F32x8 short_silu(const F32x8& x) {
  return x / (1.0f + Exponential::of_minus(x));
}

SPYRE_SIMD_INLINE F32x8 short_tanh(const F32x8& x) {
  const F32x8 z = x * x;
  const F32x8 p = polynomial(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                             1.33314422036e-1f, -3.33332819422e-1f);
  const F32x8 small = fma(p * z, x, x);
  const F32x8 large = 1.0f - 2.0f / (short_exp(x + x) + 1.0f);
  return select(magnitude_of(x) < 0.625f, small, large);
}

// x * normal_cdf(x). The tail is exp(-x * x / 2) * R(|x|), R by a polynomial in 1 / (1 + 0.4 |x|);
// x has 16 bits, so its square is exact.
template <class Exponential>
SPYRE_SIMD_INLINE F32x8 short_gelu(const F32x8& x) {
  const F32x8 a = min(splat(8.0f), magnitude_of(x));  // NaN stays: it is the second operand
  const F32x8 t = 1.0f / fma(a, splat(0.4f), splat(1.0f));
  const F32x8 r = polynomial(t, 5.70516214e-2f, -2.59988308e-1f, 3.53145957e-1f, -2.79751676e-3f,
                             1.98546007e-1f, 1.53671160e-1f, 3.70449590e-4f);
  return max(F32x8{}, x) - a * r * Exponential::of(a * a * -0.5f);
}

// sin of x + quarter * pi/2.
SPYRE_SIMD_INLINE F32x8 sine(const F32x8& x, int quarter) {
  // pi/2 in three parts; the first product is exact for |x| up to 1e5.
  const F32x8 n = round_even(x * 0.636619772367581343f);
  F32x8 r = fma(n, splat(-1.57079637f), x);
  r = fma(n, splat(4.37113900e-8f), r);
  r = fma(n, splat(1.71512451e-15f), r);
  const F32x8 z = r * r;
  const F32x8 s =
      fma(polynomial(z, -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f) * z, r, r);
  const F32x8 c =
      fma(polynomial(z, 2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f) * z,
          z, fma(z, splat(-0.5f), splat(1.0f)));
  const I32x8 turns = to_int(n) + quarter;
  const F32x8 result = select((turns & 1) != 0, c, s);
  return bits<F32x8>(bits<I32x8>(result) ^ ((turns & 2) << 30));
}

#if !defined(SPYRE_SIMD_RECORDED)

// Where the polynomials do not reach: one lane after another with the C library.
template <class Function>
SPYRE_SIMD_INLINE F32x8 lane_by_lane(const F32x8& x, Function function) {
  F32x8 result;
  for (int i = 0; i < 8; ++i) result[i] = function(x[i]);
  return result;
}

constexpr float kLargeAngle = 1e5f;

SPYRE_SIMD_INLINE F32x8 sin(const F32x8& x) {
  if (__builtin_expect(any(magnitude_of(x) > kLargeAngle), 0)) {
    const F32x8 exact = lane_by_lane(x, [](float v) { return std::sin(v); });
    return select(magnitude_of(x) > kLargeAngle, exact, sine(x, 0));
  }
  return sine(x, 0);
}
SPYRE_SIMD_INLINE F32x8 cos(const F32x8& x) {
  if (__builtin_expect(any(magnitude_of(x) > kLargeAngle), 0)) {
    const F32x8 exact = lane_by_lane(x, [](float v) { return std::cos(v); });
    return select(magnitude_of(x) > kLargeAngle, exact, sine(x, 1));
  }
  return sine(x, 1);
}

// The exponents that programs have most are products and roots, as in PyTorch.
SPYRE_SIMD_INLINE F32x8 pow(const F32x8& x, const F32x8& y) {
  const I32x8 square = y == 2.0f, cube = y == 3.0f;
  // pow(-inf, 0.5) is inf and pow(-0, 0.5) is 0: roots are neither.
  const I32x8 root = (y == 0.5f) & (x >= 0.0f);
  F32x8 result = select(square, x * x, select(cube, x * x * x, sqrt(x) + 0.0f));
  const I32x8 other = ~(square | cube | root);
  if (__builtin_expect(any(other), 0)) {
    for (int i = 0; i < 8; ++i) {
      if (other[i]) result[i] = std::pow(x[i], y[i]);
    }
  }
  return result;
}

#endif

}  // namespace
}  // namespace spyre::card::SPYRE_SIMD_NAMESPACE
