// The row kernels of numerics/convert.h, written once against numerics/simd.h and compiled once for
// each of its forms.
//
// An operation turns 16 lanes into 16 lanes; `convert` applies one along rows; the table at the end
// pairs them. Included by numerics/convert_avx2.cpp (which sets the target before) and
// numerics/convert_portable.cpp.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "numerics/convert.h"
#include "numerics/dlfloat16.h"
#include "numerics/simd.h"

namespace spyre::card::SPYRE_SIMD_NAMESPACE {
namespace {

// Internal linkage throughout: an AVX2 instance must never be merged with a portable one.

// ------------------------------------------------------------------ 16 lanes in and out of memory

template <class T>
struct LanesOf;
template <>
struct LanesOf<uint8_t> {
  using Type = U8x16;
};
template <>
struct LanesOf<uint16_t> {
  using Type = U16x16;
};
template <>
struct LanesOf<uint32_t> {
  using Type = Pair<U32x8>;
};
template <class T>
using Lanes = typename LanesOf<T>::Type;

constexpr int kLanes = 16;

SPYRE_SIMD_INLINE void stream_lanes(std::byte* to, const U8x16& lanes) { store(to, lanes); }
SPYRE_SIMD_INLINE void stream_lanes(std::byte* to, const U16x16& lanes) {
  stream(to, bits<U8x32>(lanes));
}
SPYRE_SIMD_INLINE void stream_lanes(std::byte* to, const Pair<U32x8>& lanes) {
  stream(to, bits<U8x32>(lanes.first));
  stream(to + 32, bits<U8x32>(lanes.second));
}

// ------------------------------------------------------------------------------------ operations

constexpr uint16_t kHalfOne = 0x3c00;

SPYRE_SIMD_INLINE U16x16 encode(const Pair<U32x8>& value) {
  const Pair<I32x8> signed_bits = {bits<I32x8>(value.first), bits<I32x8>(value.second)};
  const Pair<I32x8> magnitude = {signed_bits.first & 0x7fffffff, signed_bits.second & 0x7fffffff};
  constexpr int32_t kRound = Dlfloat16::kHalfUlp - Dlfloat16::kRebias;
  I16x16 code = narrow({(magnitude.first + kRound) >> Dlfloat16::kShift,
                        (magnitude.second + kRound) >> Dlfloat16::kShift});
  // Only the signs of these are used: clamping to 16 bits keeps them.
  const I16x16 above_zero =
      ~(narrow({magnitude.first - Dlfloat16::kHalfTiny, magnitude.second - Dlfloat16::kHalfTiny}) >>
        15);
  const I16x16 nan = narrow({magnitude.first > 0x7f800000, magnitude.second > 0x7f800000});
  const I16x16 sign = narrow(signed_bits) & static_cast<int16_t>(Dlfloat16::kSign);
  const I16x16 smallest = I16x16{} + 1, largest = I16x16{} + int16_t{Dlfloat16::kInfinity};
  code = min(max(code, smallest), largest) & above_zero;
  return bits<U16x16>(code | (nan & int16_t{Dlfloat16::kNan}) | sign);
}

// The upper and lower halves of the float32 are made in 16-bit lanes and joined at the end.
SPYRE_SIMD_INLINE Pair<U32x8> decode(const U16x16& code) {
  const I16x16 magnitude = bits<I16x16>(code & Dlfloat16::kMagnitude);
  const I16x16 number = magnitude != 0;
  const I16x16 special = magnitude > int16_t{Dlfloat16::kInfinity - 1};
  const I16x16 nan = magnitude == int16_t{Dlfloat16::kNan};
  I16x16 high = bits<I16x16>(code & Dlfloat16::kSign) | magnitude >> 2;
  high += number & int16_t{Dlfloat16::kRebias >> 16};
  // Both special codes have 0x4fff here; 0x7f80 is infinity, 0x7fc0 NaN.
  high += (special & int16_t{0x7f80 - 0x4fff}) + (nan & int16_t{0x40});
  const U16x16 low = (code << Dlfloat16::kShift) & bits<U16x16>(~special);
  return join(low, bits<U16x16>(high));
}

SPYRE_SIMD_INLINE U16x16 round_to_half(const Pair<U32x8>& value) {
  return float_to_half({bits<F32x8>(value.first), bits<F32x8>(value.second)});
}
SPYRE_SIMD_INLINE Pair<U32x8> widen_half(const U16x16& half) {
  const Pair<F32x8> value = half_to_float(half);
  return {bits<U32x8>(value.first), bits<U32x8>(value.second)};
}

SPYRE_SIMD_INLINE Pair<U32x8> widen_bf16(const U16x16& value) { return join(U16x16{}, value); }

// bfloat16 of a float32 in the upper half of the lane: to nearest, ties to even; NaN stays NaN.
SPYRE_SIMD_INLINE I32x8 round_bf16(const U32x8& value) {
  const U32x8 nan = bits<U32x8>(bits<I32x8>(value & 0x7fffffff) > 0x7f800000);
  const U32x8 rounded = value + 0x7fff + (value >> 16 & 1);
  return bits<I32x8>((rounded & ~nan) | ((value | 0x400000) & nan)) >> 16;
}
SPYRE_SIMD_INLINE U16x16 round_to_bf16(const Pair<U32x8>& value) {
  return bits<U16x16>(narrow({round_bf16(value.first), round_bf16(value.second)}));
}

struct F32ToDlf16 {
  using From = uint32_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const Pair<U32x8>& value) { return encode(value); }
};
struct Dlf16ToF32 {
  using From = uint16_t;
  using To = uint32_t;
  SPYRE_SIMD_INLINE static Pair<U32x8> apply(const U16x16& code) { return decode(code); }
};

// True where low <= value < high.
SPYRE_SIMD_INLINE I16x16 within(const U16x16& value, uint16_t low, uint16_t high) {
  const U16x16 above = value - low, most = U16x16{} + static_cast<uint16_t>(high - low - 1);
  return min(above, most) == above;
}

// One fraction bit less and an exponent that is larger by 16: an integer average does both. Only
// halves that are subnormal, infinite or NaN need more.
struct F16ToDlf16 {
  using From = uint16_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const U16x16& half) {
    const U16x16 magnitude = half & 0x7fff;
    const I16x16 zero = magnitude == 0;
    if (__builtin_expect(!all(within(magnitude, 0x0400, 0x7c00) | zero), 0)) {
      return encode(widen_half(half));
    }
    const U16x16 rebias = U16x16{} + uint16_t{2 * (16 << 9)};
    return (average(magnitude, rebias) & bits<U16x16>(~zero)) | (half & 0x8000);
  }
};

// Back: a half holds all 9 fraction bits, so only its smaller range needs care.
struct Dlf16ToF16 {
  using From = uint16_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const U16x16& code) {
    constexpr uint16_t kSmallestNormal = 17 << 9;  // 2^-14
    constexpr uint16_t k65536 = 47 << 9;
    const U16x16 magnitude = code & Dlfloat16::kMagnitude, sign = code & Dlfloat16::kSign;
    const I16x16 zero = magnitude == 0;
    if (__builtin_expect(!all(within(magnitude, kSmallestNormal, k65536) | zero), 0)) {
      const U16x16 is_65536 = bits<U16x16>(magnitude == k65536);
      return (round_to_half(decode(code)) & ~is_65536) | ((sign | 0x7bff) & is_65536);
    }
    return (((magnitude - (16 << 9)) << 1) & bits<U16x16>(~zero)) | sign;
  }
};

// Two fraction bits more and an exponent that is smaller by 96, all in 16 bits: bfloat16 values are
// exact on the card but for the ends of its range.
struct Bf16ToDlf16 {
  using From = uint16_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const U16x16& value) {
    constexpr int16_t kRebias = 96 << 7;
    constexpr int16_t kHalfTiny = Dlfloat16::kHalfTiny >> 16;  // rounded down: no bfloat16 between
    constexpr int16_t kEnd = kRebias + (64 << 7);              // 2^33
    const I16x16 magnitude = bits<I16x16>(value & 0x7fff);
    const I16x16 large = magnitude >= kEnd, nan = magnitude > 0x7f80;
    const I16x16 exact = (magnitude > kRebias) & ~large;
    const I16x16 tiny = (magnitude > kHalfTiny) & (magnitude <= kRebias);
    const I16x16 code = (exact & (magnitude - kRebias) << 2) | (tiny & int16_t{1}) |
                        (large & int16_t{Dlfloat16::kInfinity}) | (nan & int16_t{Dlfloat16::kNan});
    return bits<U16x16>(code) | (value & 0x8000);
  }
};
struct Dlf16ToBf16 {
  using From = uint16_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const U16x16& code) {
    constexpr uint16_t kRebias = 96 << 7;
    const U16x16 magnitude = code & Dlfloat16::kMagnitude;
    const U16x16 number = bits<U16x16>(magnitude != 0);
    const U16x16 special = bits<U16x16>(bits<I16x16>(magnitude) >= int16_t{Dlfloat16::kInfinity});
    const U16x16 nan = bits<U16x16>(magnitude == Dlfloat16::kNan);
    // To nearest, ties to even, of two bits.
    const U16x16 rounded = ((magnitude + 1 + (magnitude >> 2 & 1)) >> 2) + kRebias;
    const U16x16 finite = rounded & number & ~special;
    return finite | (special & 0x7f80) | (nan & 0x40) | (code & Dlfloat16::kSign);
  }
};

template <uint16_t kOne>
struct BoolTo16 {
  using From = uint8_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const U8x16& value) {
    return bits<U16x16>(widen(value) != 0) & kOne;
  }
};
// Both 16-bit formats have zeros of two signs and nothing else that is false.
struct BoolFrom16 {
  using From = uint16_t;
  using To = uint8_t;
  SPYRE_SIMD_INLINE static U8x16 apply(const U16x16& value) {
    return narrow_bytes(bits<U16x16>((value & 0x7fff) != 0) & 1);
  }
};

struct F32ToF16 {
  using From = uint32_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const Pair<U32x8>& value) { return round_to_half(value); }
};
struct F16ToF32 {
  using From = uint16_t;
  using To = uint32_t;
  SPYRE_SIMD_INLINE static Pair<U32x8> apply(const U16x16& half) { return widen_half(half); }
};
struct F32ToBf16 {
  using From = uint32_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const Pair<U32x8>& value) { return round_to_bf16(value); }
};
struct Bf16ToF32 {
  using From = uint16_t;
  using To = uint32_t;
  SPYRE_SIMD_INLINE static Pair<U32x8> apply(const U16x16& value) { return widen_bf16(value); }
};
struct Bf16ToF16 {
  using From = uint16_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const U16x16& value) {
    return round_to_half(widen_bf16(value));
  }
};
struct F16ToBf16 {
  using From = uint16_t;
  using To = uint16_t;
  SPYRE_SIMD_INLINE static U16x16 apply(const U16x16& half) {
    return round_to_bf16(widen_half(half));
  }
};
template <class T>
struct Copy {
  using From = T;
  using To = T;
  SPYRE_SIMD_INLINE static Lanes<T> apply(const Lanes<T>& value) { return value; }
};

// ------------------------------------------------------------------------------------------ rows

// Streams that begin inside a cache line would write that line in parts, which is slow.
SPYRE_SIMD_INLINE bool begins_a_line(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 64 == 0;
}

template <class Op>
SPYRE_SIMD_INLINE Lanes<typename Op::To> convert_lanes(const std::byte* src) {
  return Op::apply(load<Lanes<typename Op::From>>(src));
}

template <class Op>
SPYRE_SIMD_INLINE void convert_row(std::byte* dst, const std::byte* src, int64_t cols,
                                   Stores stores) {
  constexpr int64_t kFrom = sizeof(typename Op::From), kTo = sizeof(typename Op::To);
  int64_t i = 0;
  if (stores == Stores::STREAM && begins_a_line(dst)) {
    for (; i + kLanes <= cols; i += kLanes) {
      stream_lanes(dst + i * kTo, convert_lanes<Op>(src + i * kFrom));
    }
  } else {
    for (; i + kLanes <= cols; i += kLanes) {
      store(dst + i * kTo, convert_lanes<Op>(src + i * kFrom));
    }
  }
  if (i < cols) {  // the last whole vector, some of it for the second time
    i = cols - kLanes;
    store(dst + i * kTo, convert_lanes<Op>(src + i * kFrom));
  }
}

// Rows that are shorter than a vector are collected, converted together and handed out.
template <class Op>
void convert_short_rows(std::byte* dst, int64_t dst_pitch, const std::byte* src, int64_t src_pitch,
                        int64_t rows, int64_t cols) {
  using From = typename Op::From;
  using To = typename Op::To;
  constexpr int64_t kMost = 16 * kLanes;
  alignas(32) From in[kMost];
  alignas(32) To out[kMost];
  while (rows > 0) {
    const int64_t some = rows * cols <= kMost ? rows : kMost / cols;
    int64_t count = 0;
    for (int64_t r = 0; r < some; ++r) {
      const std::byte* row = src + r * src_pitch;
      for (int64_t c = 0; c < cols; ++c) in[count++] = load<From>(row + c * sizeof(From));
    }
    while (count % kLanes != 0) in[count++] = 0;
    convert_row<Op>(reinterpret_cast<std::byte*>(out), reinterpret_cast<const std::byte*>(in),
                    count, Stores::CACHED);
    const To* next = out;
    for (int64_t r = 0; r < some; ++r) {
      std::byte* row = dst + r * dst_pitch;
      for (int64_t c = 0; c < cols; ++c) store(row + c * sizeof(To), *next++);
    }
    rows -= some;
    src += some * src_pitch;
    dst += some * dst_pitch;
  }
}

template <class Op>
bool convert(std::byte* dst, int64_t dst_pitch, const std::byte* src, int64_t src_pitch,
             int64_t rows, int64_t cols, Stores stores) {
  if (cols < kLanes) {
    if (cols > 0) convert_short_rows<Op>(dst, dst_pitch, src, src_pitch, rows, cols);
    return true;
  }
  for (int64_t r = 0; r < rows; ++r) {
    convert_row<Op>(dst + r * dst_pitch, src + r * src_pitch, cols, stores);
  }
  return true;
}

// Larger elements as several smaller ones.
template <class T, int kCount>
bool copy(std::byte* dst, int64_t dst_pitch, const std::byte* src, int64_t src_pitch, int64_t rows,
          int64_t cols, Stores stores) {
  return convert<Copy<T>>(dst, dst_pitch, src, src_pitch, rows, cols * kCount, stores);
}

// Integers, one by one; compilers vectorise this well enough for their rare use.
template <class From, class To>
bool convert_integers(std::byte* dst, int64_t dst_pitch, const std::byte* src, int64_t src_pitch,
                      int64_t rows, int64_t cols, Stores) {
  bool fits = true;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const From value = load<From>(src + r * src_pitch + c * sizeof(From));
      const To result = static_cast<To>(value);
      fits &= static_cast<From>(result) == value;
      store(dst + r * dst_pitch + c * sizeof(To), result);
    }
  }
  return fits;
}

// ------------------------------------------------------------------------------------- transpose

template <class T>
void transpose_elements(std::byte* dst, int64_t dst_pitch, const std::byte* src, int64_t src_pitch,
                        int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      store(dst + j * dst_pitch + i * sizeof(T), load<T>(src + i * src_pitch + j * sizeof(T)));
    }
  }
}

// In blocks of kRows x 8, and the rest one by one.
template <class T, int kRows, void (*kBlock)(std::byte*, ptrdiff_t, const std::byte*, ptrdiff_t)>
void transpose(std::byte* dst, int64_t dst_pitch, const std::byte* src, int64_t src_pitch,
               int64_t rows, int64_t cols) {
  constexpr int64_t kSize = sizeof(T);
  const int64_t whole_rows = rows / kRows * kRows, whole_cols = cols / 8 * 8;
  for (int64_t j = 0; j < whole_cols; j += 8) {
    for (int64_t i = 0; i < whole_rows; i += kRows) {
      kBlock(dst + j * dst_pitch + i * kSize, dst_pitch, src + i * src_pitch + j * kSize,
             src_pitch);
    }
  }
  transpose_elements<T>(dst + whole_cols * dst_pitch, dst_pitch, src + whole_cols * kSize,
                        src_pitch, whole_rows, cols - whole_cols);
  transpose_elements<T>(dst + whole_rows * kSize, dst_pitch, src + whole_rows * src_pitch,
                        src_pitch, rows - whole_rows, cols);
}

void finish_streams() { fence(); }

}  // namespace

// ----------------------------------------------------------------------------------------- table

// In the order of Conversion.
extern const ConvertTable kConvertTable = {
    .to_card = {copy<uint8_t, 1>, copy<uint16_t, 1>, copy<uint32_t, 1>, copy<uint32_t, 2>,
                copy<uint32_t, 4>, convert<F32ToDlf16>, convert<F16ToDlf16>, convert<Bf16ToDlf16>,
                convert<BoolTo16<Dlfloat16::kOne>>, convert<F32ToF16>, convert<Bf16ToF16>,
                convert<BoolTo16<kHalfOne>>, convert<F16ToF32>, convert<Bf16ToF32>,
                convert_integers<int64_t, int32_t>, convert_integers<uint8_t, uint32_t>},
    .from_card = {copy<uint8_t, 1>, copy<uint16_t, 1>, copy<uint32_t, 1>, copy<uint32_t, 2>,
                  copy<uint32_t, 4>, convert<Dlf16ToF32>, convert<Dlf16ToF16>, convert<Dlf16ToBf16>,
                  convert<BoolFrom16>, convert<F16ToF32>, convert<F16ToBf16>, convert<BoolFrom16>,
                  convert<F32ToF16>, convert<F32ToBf16>, convert_integers<int32_t, int64_t>,
                  convert_integers<uint32_t, uint8_t>},
    .transpose_1 = transpose_elements<uint8_t>,
    .transpose_2 = transpose<uint16_t, 16, transpose16x8_16>,
    .transpose_4 = transpose<uint32_t, 8, transpose8x8_32>,
    .fence = finish_streams,
};

}  // namespace spyre::card::SPYRE_SIMD_NAMESPACE
