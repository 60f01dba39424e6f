// The third form of numerics/simd.h: vectors that are not computed but written down, as values of a
// VectorCode. Functions that are written against numerics/simd.h then say what machine code they
// are: to include this header first puts it in that one's place.
//
// Only what elementary functions and rounding need is here. Masks are integers whose value is one
// of a comparison; what is done with them is done with bits of mask registers where that is
// possible. Example: RecordingScope scope(code); F32x8 y = exp(F32x8(x)); y.value is that of
// exp(x).
#pragma once

#include <bit>
#include <cstdint>

#include "jit/vector_ir.h"

#define SPYRE_SIMD_RECORDED
#define SPYRE_SIMD_NAMESPACE simd_recorded
#define SPYRE_SIMD_INLINE inline

namespace spyre::card::simd_recorded {

inline thread_local VectorCode* recorded = nullptr;

class RecordingScope {
 public:
  explicit RecordingScope(VectorCode& code) : before_(recorded) { recorded = &code; }
  ~RecordingScope() { recorded = before_; }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  VectorCode* before_;
};

inline int record(VectorOp op, int a, int b = -1, int c = -1, int imm = 0) {
  return recorded->make(op, a, b, c, imm);
}

struct F32x8 {
  F32x8() : value(recorded->constant(0)) {}
  explicit F32x8(int id) : value(id) {}
  F32x8(float x) : value(recorded->constant(std::bit_cast<uint32_t>(x))) {}
  int value;
};

// Lanes of a mask become lanes of ones and zeros where they are computed with.
struct I32x8 {
  I32x8() : value(recorded->constant(0)) {}
  explicit I32x8(int id, bool) : value(id) {}
  I32x8(int32_t x) : value(recorded->constant(static_cast<uint32_t>(x))) {}
  int value;

  bool is_mask() const { return card::is_mask(recorded->values()[value].op); }
  int lanes() const { return is_mask() ? record(VectorOp::MASK_LANES, value) : value; }
};

struct U32x8 {
  U32x8() : value(recorded->constant(0)) {}
  explicit U32x8(int id, bool) : value(id) {}
  U32x8(uint32_t x) : value(recorded->constant(x)) {}
  int value;
};

template <class To, class From>
To bits(const From& from);
template <>
inline F32x8 bits<F32x8>(const I32x8& from) {
  return F32x8(from.lanes());
}
template <>
inline F32x8 bits<F32x8>(const U32x8& from) {
  return F32x8(from.value);
}
template <>
inline I32x8 bits<I32x8>(const F32x8& from) {
  return I32x8(from.value, true);
}
template <>
inline I32x8 bits<I32x8>(const U32x8& from) {
  return I32x8(from.value, true);
}
template <>
inline U32x8 bits<U32x8>(const F32x8& from) {
  return U32x8(from.value, true);
}
template <>
inline U32x8 bits<U32x8>(const I32x8& from) {
  return U32x8(from.lanes(), true);
}

inline F32x8 operator+(const F32x8& a, const F32x8& b) {
  return F32x8(record(VectorOp::ADD, a.value, b.value));
}
inline F32x8 operator-(const F32x8& a, const F32x8& b) {
  return F32x8(record(VectorOp::SUB, a.value, b.value));
}
inline F32x8 operator*(const F32x8& a, const F32x8& b) {
  return F32x8(record(VectorOp::MUL, a.value, b.value));
}
inline F32x8 operator/(const F32x8& a, const F32x8& b) {
  return F32x8(record(VectorOp::DIV, a.value, b.value));
}
inline F32x8 operator-(const F32x8& a) {
  return F32x8(record(VectorOp::XOR, a.value, recorded->constant(0x80000000)));
}

inline I32x8 compared(VectorOp op, int a, int b, Comparison comparison) {
  return I32x8(record(op, a, b, -1, static_cast<int>(comparison)), true);
}
inline I32x8 operator==(const F32x8& a, const F32x8& b) {
  return compared(VectorOp::COMPARE, a.value, b.value, Comparison::EQUAL);
}
inline I32x8 operator!=(const F32x8& a, const F32x8& b) {
  return compared(VectorOp::COMPARE, a.value, b.value, Comparison::NOT_EQUAL);
}
inline I32x8 operator<(const F32x8& a, const F32x8& b) {
  return compared(VectorOp::COMPARE, a.value, b.value, Comparison::LESS);
}
inline I32x8 operator<=(const F32x8& a, const F32x8& b) {
  return compared(VectorOp::COMPARE, a.value, b.value, Comparison::LESS_EQUAL);
}
inline I32x8 operator>(const F32x8& a, const F32x8& b) { return b < a; }
inline I32x8 operator>=(const F32x8& a, const F32x8& b) { return b <= a; }
inline I32x8 operator==(const I32x8& a, const I32x8& b) {
  return compared(VectorOp::INT_COMPARE, a.lanes(), b.lanes(), Comparison::EQUAL);
}
inline I32x8 operator!=(const I32x8& a, const I32x8& b) {
  return compared(VectorOp::INT_COMPARE, a.lanes(), b.lanes(), Comparison::NOT_EQUAL);
}
inline I32x8 operator<(const I32x8& a, const I32x8& b) {
  return compared(VectorOp::INT_COMPARE, a.lanes(), b.lanes(), Comparison::LESS);
}
inline I32x8 operator<=(const I32x8& a, const I32x8& b) {
  return compared(VectorOp::INT_COMPARE, a.lanes(), b.lanes(), Comparison::LESS_EQUAL);
}
inline I32x8 operator>(const I32x8& a, const I32x8& b) { return b < a; }
inline I32x8 operator>=(const I32x8& a, const I32x8& b) { return b <= a; }

// Of two masks, of a mask and lanes, or of lanes.
inline I32x8 operator&(const I32x8& a, const I32x8& b) {
  if (a.is_mask() && b.is_mask()) return I32x8(record(VectorOp::MASK_AND, a.value, b.value), true);
  if (a.is_mask()) return I32x8(record(VectorOp::KEEP, a.value, b.value), true);
  if (b.is_mask()) return I32x8(record(VectorOp::KEEP, b.value, a.value), true);
  return I32x8(record(VectorOp::AND, a.value, b.value), true);
}
inline I32x8 operator|(const I32x8& a, const I32x8& b) {
  if (a.is_mask() && b.is_mask()) return I32x8(record(VectorOp::MASK_OR, a.value, b.value), true);
  return I32x8(record(VectorOp::OR, a.lanes(), b.lanes()), true);
}
inline I32x8 operator~(const I32x8& a) {
  if (a.is_mask()) return I32x8(record(VectorOp::MASK_NOT, a.value), true);
  return I32x8(record(VectorOp::XOR, a.value, recorded->constant(~0u)), true);
}
inline I32x8 operator^(const I32x8& a, const I32x8& b) {
  return I32x8(record(VectorOp::XOR, a.lanes(), b.lanes()), true);
}
inline I32x8 operator+(const I32x8& a, const I32x8& b) {
  return I32x8(record(VectorOp::INT_ADD, a.lanes(), b.lanes()), true);
}
inline I32x8 operator-(const I32x8& a, const I32x8& b) {
  return I32x8(record(VectorOp::INT_SUB, a.lanes(), b.lanes()), true);
}
inline I32x8 operator<<(const I32x8& a, int by) {
  return I32x8(record(VectorOp::SHIFT_LEFT, a.lanes(), -1, -1, by), true);
}
inline I32x8 operator>>(const I32x8& a, int by) {
  return I32x8(record(VectorOp::SHIFT_RIGHT_SIGNED, a.lanes(), -1, -1, by), true);
}
inline U32x8 operator+(const U32x8& a, const U32x8& b) {
  return U32x8(record(VectorOp::INT_ADD, a.value, b.value), true);
}
inline U32x8 operator-(const U32x8& a, const U32x8& b) {
  return U32x8(record(VectorOp::INT_SUB, a.value, b.value), true);
}
inline U32x8 operator*(const U32x8& a, const U32x8& b) {
  return U32x8(record(VectorOp::INT_MUL, a.value, b.value), true);
}
inline U32x8 operator^(const U32x8& a, const U32x8& b) {
  return U32x8(record(VectorOp::XOR, a.value, b.value), true);
}
inline U32x8 operator<<(const U32x8& a, int by) {
  return U32x8(record(VectorOp::SHIFT_LEFT, a.value, -1, -1, by), true);
}
inline U32x8 operator>>(const U32x8& a, int by) {
  return U32x8(record(VectorOp::SHIFT_RIGHT, a.value, -1, -1, by), true);
}

inline F32x8 fma(const F32x8& a, const F32x8& b, const F32x8& c) {
  return F32x8(record(VectorOp::FMA, a.value, b.value, c.value));
}
inline F32x8 sqrt(const F32x8& a) { return F32x8(record(VectorOp::SQRT, a.value)); }
inline F32x8 max(const F32x8& a, const F32x8& b) {
  return F32x8(record(VectorOp::MAX, a.value, b.value));
}
inline F32x8 min(const F32x8& a, const F32x8& b) {
  return F32x8(record(VectorOp::MIN, a.value, b.value));
}
inline I32x8 max(const I32x8& a, const I32x8& b) {
  return I32x8(record(VectorOp::INT_MAXIMUM, a.lanes(), b.lanes()), true);
}
inline I32x8 min(const I32x8& a, const I32x8& b) {
  return I32x8(record(VectorOp::INT_MINIMUM, a.lanes(), b.lanes()), true);
}
inline F32x8 select(const I32x8& mask, const F32x8& yes, const F32x8& no) {
  return F32x8(record(VectorOp::SELECT, mask.value, yes.value, no.value));
}
inline I32x8 select(const I32x8& mask, const I32x8& yes, const I32x8& no) {
  return I32x8(record(VectorOp::SELECT, mask.value, yes.lanes(), no.lanes()), true);
}
inline F32x8 rounded_by(const F32x8& a, int imm) {
  return F32x8(record(VectorOp::ROUND, a.value, -1, -1, imm));
}
inline F32x8 round_even(const F32x8& a) { return rounded_by(a, 0); }
inline F32x8 floor(const F32x8& a) { return rounded_by(a, 1); }
inline F32x8 ceil(const F32x8& a) { return rounded_by(a, 2); }
inline F32x8 trunc(const F32x8& a) { return rounded_by(a, 3); }
inline I32x8 to_int(const F32x8& a) { return I32x8(record(VectorOp::TO_INT, a.value), true); }
inline F32x8 to_float(const I32x8& a) { return F32x8(record(VectorOp::TO_FLOAT, a.lanes())); }

}  // namespace spyre::card::simd_recorded
