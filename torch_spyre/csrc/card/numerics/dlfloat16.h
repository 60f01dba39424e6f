// DLFloat16, the 16-bit floating point format of the card: its scalar definition.
//
// 1 sign, 6 exponent (bias 31) and 9 fraction bits. With a = code without its sign bit:
//   a == 0                 zero (both signs are kept)
//   1 <= a <= 0x7ffd       2^(a/512 - 31) * (1 + (a mod 512)/512); there are no subnormals
//   a == 0x7ffe            infinity
//   a == 0x7fff            NaN
// Encoding takes the nearest of these values and, half way between two, the one away from zero.
//   - The smallest number is tiny = 2^-31 * (1 + 1/512): 2^-31 itself would be code 0. So between
//     0 and tiny there is nothing: magnitudes from tiny/2 on become tiny, those below become zero.
//   - The largest finite code is 0x7ffd. A magnitude that would round to 0x7ffe or beyond, were
//   that
//     code a number, is infinity.
// Example: encode_dlfloat16(1.0f) == 0x3e00; encode_dlfloat16(65504.0f) decodes to 65536.
//
// numerics/convert.inl has the SIMD forms; tests compare them bit for bit with these functions.
#pragma once

#include <bit>
#include <cstdint>

namespace spyre::card {

struct Dlfloat16 {
  static constexpr uint16_t kSign = 0x8000;
  static constexpr uint16_t kMagnitude = 0x7fff;
  static constexpr uint16_t kOne = 0x3e00;
  static constexpr uint16_t kInfinity = 0x7ffe;
  static constexpr uint16_t kNan = 0x7fff;
  // A float32 has 14 fraction bits more and a bias that is larger by 96.
  static constexpr int kShift = 14;
  static constexpr int32_t kRebias = 96 << 23;
  static constexpr int32_t kHalfUlp = 1 << (kShift - 1);
  // Bits of tiny/2 = 2^-32 * (1 + 1/512) as a float32, the smallest magnitude that is not zero.
  static constexpr int32_t kHalfTiny = ((127 - 32) << 23) + (1 << kShift);
};

constexpr uint16_t encode_dlfloat16(float value) {
  constexpr int32_t kFloatInfinity = 0x7f800000;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffff);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16) & Dlfloat16::kSign;
  if (magnitude > kFloatInfinity) return sign | Dlfloat16::kNan;
  if (magnitude < Dlfloat16::kHalfTiny) return sign;
  int32_t code = (magnitude + Dlfloat16::kHalfUlp - Dlfloat16::kRebias) >> Dlfloat16::kShift;
  if (code < 1) code = 1;
  if (code > Dlfloat16::kInfinity) code = Dlfloat16::kInfinity;
  return sign | static_cast<uint16_t>(code);
}

constexpr float decode_dlfloat16(uint16_t code) {
  const uint32_t magnitude = code & Dlfloat16::kMagnitude;
  uint32_t bits = (magnitude << Dlfloat16::kShift) + Dlfloat16::kRebias;
  if (magnitude == 0) bits = 0;
  if (magnitude == Dlfloat16::kInfinity) bits = 0x7f800000;
  if (magnitude == Dlfloat16::kNan) bits = 0x7fc00000;
  return std::bit_cast<float>(bits | static_cast<uint32_t>(code & Dlfloat16::kSign) << 16);
}

}  // namespace spyre::card
