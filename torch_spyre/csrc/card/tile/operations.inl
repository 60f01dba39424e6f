// What single instructions of tile programs do to 8 lanes, and rounding to DLFloat16: written once
// against numerics/simd.h, for kernels on tiles (tile/kernels.inl) and for code that is translated
// (jit/record.cpp).
#include <cstdint>

#include "numerics/dlfloat16.h"
#include "numerics/math_kernels.inl"
#include "numerics/simd.h"

namespace spyre::card::SPYRE_SIMD_NAMESPACE {
namespace {

SPYRE_SIMD_INLINE F32x8 one_where(const I32x8& mask) { return bits<F32x8>(mask & 0x3f800000); }

// NaN of either operand is handed on.
SPYRE_SIMD_INLINE F32x8 maximum(const F32x8& a, const F32x8& b) {
  return select(a != a, a, max(a, b));
}
SPYRE_SIMD_INLINE F32x8 minimum(const F32x8& a, const F32x8& b) {
  return select(a != a, a, min(a, b));
}

// ------------------------------------------------------------------------------------- DLFloat16

constexpr int32_t kFraction = (1 << Dlfloat16::kShift) - 1;  // what the format does not have
constexpr int32_t kTiny = Dlfloat16::kRebias + (1 << Dlfloat16::kShift);
constexpr int32_t kLarge = Dlfloat16::kRebias + (Dlfloat16::kInfinity << Dlfloat16::kShift);

// What encoding to DLFloat16 and decoding gives (numerics/dlfloat16.h), for any value.
SPYRE_SIMD_INLINE F32x8 round_dlf16(const F32x8& value) {
  const I32x8 all_bits = bits<I32x8>(value);
  const I32x8 magnitude = all_bits & 0x7fffffff;
  const I32x8 sign = all_bits ^ magnitude;
  const I32x8 number = min(magnitude, I32x8{} + 0x7f800000);
  I32x8 rounded = (number + Dlfloat16::kHalfUlp) & ~kFraction;
  rounded = max(rounded, I32x8{} + kTiny) & (magnitude >= Dlfloat16::kHalfTiny);
  rounded = select(rounded >= kLarge, I32x8{} + 0x7f800000, rounded);
  return bits<F32x8>(rounded | ((magnitude > 0x7f800000) & 0x00400000) | sign);
}

// ----------------------------------------------------------------------------------- operations

#define SPYRE_UNARY(Name, expression)                                           \
  struct Name {                                                                 \
    SPYRE_SIMD_INLINE static F32x8 apply(const F32x8& a) { return expression; } \
  };
#define SPYRE_BINARY(Name, expression)                                                          \
  struct Name {                                                                                 \
    SPYRE_SIMD_INLINE static F32x8 apply(const F32x8& a, const F32x8& b) { return expression; } \
  };
#define SPYRE_INT_UNARY(Name, expression)                                       \
  struct Name {                                                                 \
    SPYRE_SIMD_INLINE static I32x8 apply(const I32x8& a) { return expression; } \
  };
#define SPYRE_INT_BINARY(Name, expression)                                                      \
  struct Name {                                                                                 \
    SPYRE_SIMD_INLINE static I32x8 apply(const I32x8& a, const I32x8& b) { return expression; } \
  };

SPYRE_UNARY(Abs, bits<F32x8>(bits<I32x8>(a) & 0x7fffffff))
SPYRE_UNARY(Neg, bits<F32x8>(bits<I32x8>(a) ^ INT32_MIN))
SPYRE_UNARY(Exp, exp(a))
SPYRE_UNARY(Log, log(a))
SPYRE_UNARY(Sqrt, sqrt(a))
SPYRE_UNARY(Rsqrt, 1.0f / sqrt(a))
SPYRE_UNARY(Reciprocal, 1.0f / a)
SPYRE_UNARY(Sigmoid, 1.0f / (1.0f + exp(-a)))
SPYRE_UNARY(Tanh, tanh(a))
SPYRE_UNARY(Silu, a / (1.0f + exp(-a)))
SPYRE_UNARY(GeluErf, a* normal_cdf(a))
SPYRE_UNARY(GeluTanh,
            a / (1.0f + exp(-1.595769121605730711f * fma(a * a * a, splat(0.044715f), a))))
SPYRE_UNARY(ShortExp, short_exp(a))
// Rounded to DLFloat16 the rest is zero; what is not quite zero would be rounded the long way.
SPYRE_UNARY(ShortExpOrZero, bits<F32x8>(bits<I32x8>(short_exp(a)) & ~(a < -22.25f)))
SPYRE_UNARY(ShortSigmoid, short_sigmoid<AnyExponential>(a))
SPYRE_UNARY(ShortTanh, short_tanh(a))
SPYRE_UNARY(ShortSilu, short_silu<AnyExponential>(a))
SPYRE_UNARY(ShortGeluErf, short_gelu<AnyExponential>(a))
SPYRE_UNARY(NearExp, NearExponential::of(a))
SPYRE_UNARY(NearSigmoid, short_sigmoid<NearExponential>(a))
SPYRE_UNARY(NearSilu, short_silu<NearExponential>(a))
SPYRE_UNARY(NearGeluErf, short_gelu<NearExponential>(a))
SPYRE_UNARY(ShortGeluTanh,
            a / (1.0f + short_exp(-1.595769121605730711f * fma(a * a * a, splat(0.044715f), a))))
SPYRE_UNARY(Relu, max(F32x8{}, a))
SPYRE_UNARY(Floor, floor(a))
SPYRE_UNARY(Ceil, ceil(a))
SPYRE_UNARY(Trunc, trunc(a))
SPYRE_UNARY(RoundEven, round_even(a))
SPYRE_UNARY(Erf, erf(a))
SPYRE_UNARY(Log1p, log1p(a))
SPYRE_UNARY(Expm1, expm1(a))
SPYRE_UNARY(IsNan, one_where(a != a))
SPYRE_UNARY(Copy, a)
SPYRE_BINARY(Add, a + b)
SPYRE_BINARY(Sub, a - b)
SPYRE_BINARY(Mul, a* b)
SPYRE_BINARY(Div, a / b)
SPYRE_BINARY(Maximum, maximum(a, b))
SPYRE_BINARY(Minimum, minimum(a, b))
SPYRE_BINARY(Eq, one_where(a == b))
SPYRE_BINARY(Ne, one_where(a != b))
SPYRE_BINARY(Lt, one_where(a < b))
SPYRE_BINARY(Le, one_where(a <= b))
SPYRE_BINARY(Gt, one_where(a > b))
SPYRE_BINARY(Ge, one_where(a >= b))
SPYRE_INT_UNARY(IntToFloat, bits<I32x8>(to_float(a)))
SPYRE_INT_UNARY(FloatToInt, to_int(bits<F32x8>(a)))
// Integers wrap: the arithmetic is that of unsigned ones.
SPYRE_INT_UNARY(IntNeg, bits<I32x8>(0u - bits<U32x8>(a)))
SPYRE_INT_UNARY(IntAbs, bits<I32x8>((bits<U32x8>(a) ^ bits<U32x8>(a >> 31)) - bits<U32x8>(a >> 31)))
SPYRE_INT_BINARY(IntAdd, bits<I32x8>(bits<U32x8>(a) + bits<U32x8>(b)))
SPYRE_INT_BINARY(IntSub, bits<I32x8>(bits<U32x8>(a) - bits<U32x8>(b)))
SPYRE_INT_BINARY(IntMul, bits<I32x8>(bits<U32x8>(a) * bits<U32x8>(b)))
SPYRE_INT_BINARY(IntMax, max(a, b))
SPYRE_INT_BINARY(IntMin, min(a, b))
SPYRE_INT_BINARY(IntEq, (a == b) & 0x3f800000)
SPYRE_INT_BINARY(IntNe, (a != b) & 0x3f800000)
SPYRE_INT_BINARY(IntLt, (a < b) & 0x3f800000)
SPYRE_INT_BINARY(IntLe, (a <= b) & 0x3f800000)
SPYRE_INT_BINARY(IntGt, (a > b) & 0x3f800000)
SPYRE_INT_BINARY(IntGe, (a >= b) & 0x3f800000)

// Written with branches, which cannot be recorded.
#if !defined(SPYRE_SIMD_RECORDED)
SPYRE_UNARY(Sin, sin(a))
SPYRE_UNARY(Cos, cos(a))
SPYRE_BINARY(Pow, pow(a, b))
#endif

#undef SPYRE_UNARY
#undef SPYRE_BINARY
#undef SPYRE_INT_UNARY
#undef SPYRE_INT_BINARY

}  // namespace
}  // namespace spyre::card::SPYRE_SIMD_NAMESPACE
