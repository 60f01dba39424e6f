#include "jit/record.h"

#include <limits>

#include "jit/simd_recorded.h"
// After what takes the place of numerics/simd.h in them.
#include "tile/kernels.h"
#include "tile/operations.inl"

namespace spyre::card {
namespace simd_recorded {
namespace {

F32x8 lanes(int value) { return F32x8(value); }
I32x8 integers(int value) { return I32x8(value, true); }

template <class Op>
int unary(int a) {
  return Op::apply(lanes(a)).value;
}
template <class Op>
int binary(int a, int b) {
  return Op::apply(lanes(a), lanes(b)).value;
}
template <class Op>
int int_unary(int a) {
  return Op::apply(integers(a)).lanes();
}
template <class Op>
int int_binary(int a, int b) {
  return Op::apply(integers(a), integers(b)).lanes();
}

int softplus(const F32x8& a, const F32x8& beta, const F32x8& threshold) {
  const F32x8 scaled = a * beta;
  return select(scaled > threshold, a, log1p(exp(scaled)) / beta).value;
}

int instruction(int opcode, int a, int b, int c, uint32_t imm0, uint32_t imm1) {
  switch (opcode) {
    case ABS:
      return unary<Abs>(a);
    case NEG:
      return unary<Neg>(a);
    case EXP:
      return unary<Exp>(a);
    case LOG:
      return unary<Log>(a);
    case SQRT:
      return unary<Sqrt>(a);
    case RSQRT:
      return unary<Rsqrt>(a);
    case RECIPROCAL:
      return unary<Reciprocal>(a);
    case SIGMOID:
      return unary<Sigmoid>(a);
    case TANH:
      return unary<Tanh>(a);
    case SILU:
      return unary<Silu>(a);
    case GELU_ERF:
      return unary<GeluErf>(a);
    case GELU_TANH:
      return unary<GeluTanh>(a);
    case RELU:
      return unary<Relu>(a);
    case FLOOR:
      return unary<Floor>(a);
    case CEIL:
      return unary<Ceil>(a);
    case TRUNC:
      return unary<Trunc>(a);
    case ROUND_EVEN:
      return unary<RoundEven>(a);
    case ERF:
      return unary<Erf>(a);
    case LOG1P:
      return unary<Log1p>(a);
    case EXPM1:
      return unary<Expm1>(a);
    case ISNAN:
      return unary<IsNan>(a);
    case COPY:
      return a;
    case SHORT_EXP:
      return unary<ShortExp>(a);
    case SHORT_SIGMOID:
      return unary<ShortSigmoid>(a);
    case SHORT_TANH:
      return unary<ShortTanh>(a);
    case SHORT_SILU:
      return unary<ShortSilu>(a);
    case SHORT_GELU_ERF:
      return unary<ShortGeluErf>(a);
    case SHORT_GELU_TANH:
      return unary<ShortGeluTanh>(a);
    case ADD:
      return binary<Add>(a, b);
    case SUB:
      return binary<Sub>(a, b);
    case MUL:
      return binary<Mul>(a, b);
    case DIV:
      return binary<Div>(a, b);
    case MAXIMUM:
      return binary<Maximum>(a, b);
    case MINIMUM:
      return binary<Minimum>(a, b);
    case EQ:
      return binary<Eq>(a, b);
    case NE:
      return binary<Ne>(a, b);
    case LT:
      return binary<Lt>(a, b);
    case LE:
      return binary<Le>(a, b);
    case GT:
      return binary<Gt>(a, b);
    case GE:
      return binary<Ge>(a, b);
    case WHERE:
      return select(lanes(a) != 0.0f, lanes(b), lanes(c)).value;
    case CLIP:
      return min(splat(float_of(imm1)), max(splat(float_of(imm0)), lanes(a))).value;
    case SOFTPLUS:
      return softplus(lanes(a), splat(float_of(imm0)), splat(float_of(imm1)));
    case CONSTANT:
    case CONSTANT_BITS:
      return recorded->constant(imm0);
    case ADD_CONSTANT:
      return binary<Add>(a, recorded->constant(imm0));
    case MUL_CONSTANT:
      return binary<Mul>(a, recorded->constant(imm0));
    case INT_TO_FLOAT:
      return int_unary<IntToFloat>(a);
    case FLOAT_TO_INT:
      return int_unary<FloatToInt>(a);
    case INT_ABS:
      return int_unary<IntAbs>(a);
    case INT_NEG:
      return int_unary<IntNeg>(a);
    case INT_ADD:
      return int_binary<IntAdd>(a, b);
    case INT_SUB:
      return int_binary<IntSub>(a, b);
    case INT_MUL:
      return int_binary<IntMul>(a, b);
    case INT_MAX_OF:
      return int_binary<IntMax>(a, b);
    case INT_MIN_OF:
      return int_binary<IntMin>(a, b);
    case INT_EQ:
      return int_binary<IntEq>(a, b);
    case INT_NE:
      return int_binary<IntNe>(a, b);
    case INT_LT:
      return int_binary<IntLt>(a, b);
    case INT_LE:
      return int_binary<IntLe>(a, b);
    case INT_GT:
      return int_binary<IntGt>(a, b);
    case INT_GE:
      return int_binary<IntGe>(a, b);
    default:
      return -1;
  }
}

// ---- DLFloat16 ----------------------------------------------------------------------------------

// Moved into the upper bits of a float32 the exponent is too small by 96; a product sets it right
// and leaves zero alone. Where the exponent is 0 the format has numbers and float32 has others:
// those are not ordinary.
constexpr float kUp = 0x1p96f, kDown = 0x1p-96f;

F32x8 scaled_of(const I32x8& codes) {
  return bits<F32x8>((codes << Dlfloat16::kShift) & static_cast<int32_t>(0x9fffc000));
}

F32x8 decode_ordinary(const I32x8& codes) { return scaled_of(codes) * splat(kUp); }

constexpr int32_t kFloatMagnitude = 0x7fffffff, kFloatInfinity = 0x7f800000;

I32x8 with_sign(const I32x8& sign, const I32x8& magnitude) {
  return I32x8(
      record(VectorOp::TAKE_BITS, sign.value, magnitude.value, recorded->constant(0x80000000)),
      true);
}
I32x8 combined(VectorOp op, const I32x8& mask, const I32x8& a, const I32x8& b) {
  return I32x8(record(op, mask.value, a.value, b.value), true);
}

// Codes of infinity and NaN end in 14 ones and the bit that tells them apart: shifted by 22 they
// are exponent and first fraction bit of what float32 has for them.
F32x8 decode_any(const I32x8& codes) {
  static_assert(Dlfloat16::kInfinity == 0x7ffe && Dlfloat16::kNan == 0x7fff);
  const I32x8 shifted = codes << Dlfloat16::kShift;
  const I32x8 not_zero(
      record(VectorOp::TEST, shifted.value,
             recorded->constant(uint32_t{Dlfloat16::kMagnitude} << Dlfloat16::kShift)),
      true);
  const I32x8 number = combined(VectorOp::ADD_WHERE, not_zero,
                                shifted & static_cast<int32_t>(0x9fffc000), Dlfloat16::kRebias);
  const I32x8 special = with_sign(codes, codes << 22);
  return bits<F32x8>(select(
      (codes & int32_t{Dlfloat16::kInfinity}) == int32_t{Dlfloat16::kInfinity}, special, number));
}

F32x8 round_ordinary(const F32x8& value) {
  return bits<F32x8>((bits<I32x8>(value) + Dlfloat16::kHalfUlp) & ~kFraction);
}

// The sign is one bit further up than the rest.
I32x8 upper_half(const I32x8& scaled) {
  return I32x8(record(VectorOp::TAKE_BITS, scaled.value, (scaled << 2).value,
                      recorded->constant(0x80000000)),
               true);
}

I32x8 encode_scaled(const F32x8& value, bool coarse) {
  const I32x8 scaled = bits<I32x8>(value);
  return upper_half(coarse ? scaled : scaled + Dlfloat16::kHalfUlp);
}

F32x8 scaled_down(const F32x8& value) {
  return F32x8(record(VectorOp::MUL, value.value, splat(kDown).value, -1, 1));
}

// As in numerics/dlfloat16.h.
I32x8 encode_any(const F32x8& value) {
  const I32x8 magnitude = bits<I32x8>(value) & kFloatMagnitude;
  const I32x8 rounded =
      (magnitude + (Dlfloat16::kHalfUlp - Dlfloat16::kRebias)) >> Dlfloat16::kShift;
  const I32x8 number = combined(VectorOp::KEEP_MAXIMUM, magnitude >= Dlfloat16::kHalfTiny,
                                min(rounded, I32x8(int32_t{Dlfloat16::kInfinity})), I32x8(1));
  const I32x8 code = select(value != value, I32x8(int32_t{Dlfloat16::kNan}), number);
  return with_sign(bits<I32x8>(value), code << 16);
}

// Of a result of float32 arithmetic, where NaN are quiet.
F32x8 round_computed(const F32x8& value) {
  const I32x8 magnitude = bits<I32x8>(value) & kFloatMagnitude;
  I32x8 rounded =
      (min(magnitude, I32x8(kFloatInfinity | 0x00400000)) + Dlfloat16::kHalfUlp) & ~kFraction;
  rounded =
      combined(VectorOp::KEEP_MAXIMUM, magnitude >= Dlfloat16::kHalfTiny, rounded, I32x8(kTiny));
  rounded = combined(VectorOp::MAXIMUM_WHERE, magnitude >= kLarge - Dlfloat16::kHalfUlp, rounded,
                     I32x8(kFloatInfinity));
  return bits<F32x8>(with_sign(bits<I32x8>(value), rounded));
}

bool is_computed(const F32x8& value) {
  const VectorOp op = recorded->values()[value.value].op;
  return op >= VectorOp::ADD && op <= VectorOp::SQRT;
}

F32x8 round_any(const F32x8& value) {
  return is_computed(value) ? round_computed(value) : round_dlf16(value);
}

}  // namespace
}  // namespace simd_recorded

using simd_recorded::RecordingScope;

int record_instruction(VectorCode& code, int opcode, int a, int b, int c, uint32_t imm0,
                       uint32_t imm1) {
  const RecordingScope scope(code);
  return simd_recorded::instruction(opcode, a, b, c, imm0, imm1);
}

int record_near(VectorCode& code, int opcode, int a) {
  const RecordingScope scope(code);
  switch (opcode) {
    case SHORT_EXP:
      return simd_recorded::unary<simd_recorded::NearExp>(a);
    case SHORT_SIGMOID:
      return simd_recorded::unary<simd_recorded::NearSigmoid>(a);
    case SHORT_SILU:
      return simd_recorded::unary<simd_recorded::NearSilu>(a);
    default:
      return simd_recorded::unary<simd_recorded::NearGeluErf>(a);
  }
}

float nearness_of(int opcode) {
  switch (opcode) {
    case SHORT_EXP:
    case SHORT_SIGMOID:
    case SHORT_SILU:
      return 80.0f;
    case SHORT_GELU_ERF:  // any number: the exponential is of a smaller one
      return std::numeric_limits<float>::max();
    default:
      return 0.0f;
  }
}

int record_decode(VectorCode& code, int codes, bool ordinary) {
  const RecordingScope scope(code);
  const auto lanes = simd_recorded::integers(codes);
  return (ordinary ? simd_recorded::decode_ordinary(lanes) : simd_recorded::decode_any(lanes))
      .value;
}

int record_round(VectorCode& code, int value, bool ordinary) {
  const RecordingScope scope(code);
  const auto lanes = simd_recorded::lanes(value);
  return (ordinary ? simd_recorded::round_ordinary(lanes) : simd_recorded::round_any(lanes)).value;
}

int record_encode(VectorCode& code, int value) {
  const RecordingScope scope(code);
  return simd_recorded::encode_any(simd_recorded::lanes(value)).value;
}

int record_scaled(VectorCode& code, int codes) {
  const RecordingScope scope(code);
  return simd_recorded::scaled_of(simd_recorded::integers(codes)).value;
}

int record_scaled_down(VectorCode& code, int value) {
  const RecordingScope scope(code);
  return simd_recorded::scaled_down(simd_recorded::lanes(value)).value;
}

int record_encode_scaled(VectorCode& code, int scaled, bool coarse) {
  const RecordingScope scope(code);
  return simd_recorded::encode_scaled(simd_recorded::lanes(scaled), coarse).value;
}

}  // namespace spyre::card
