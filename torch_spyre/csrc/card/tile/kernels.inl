// The functions of tile/kernels.h, written once against numerics/simd.h and compiled once for each
// of its forms that compute: the loops over tiles, the table. What they do to 8 lanes is in
// tile/operations.inl.
//
// Products and sums that shall be fused are written as fma(); the including files switch off the
// compiler's own contraction, so that both forms have the same bits.
#include <type_traits>

#include "numerics/simd.h"
#include "tile/kernels.h"
#include "tile/operations.inl"

namespace spyre::card::SPYRE_SIMD_NAMESPACE {
namespace {

// Internal linkage throughout: an AVX2 instance must never be merged with a portable one.

// ------------------------------------------------------------------------------------- DLFloat16

// Four vectors are handled together: one test tells whether any lane is special.
constexpr int64_t kBlock = 32;
struct Block {
  F32x8 v[4];
};

SPYRE_SIMD_INLINE Block load_block(const uint32_t* from) {
  return {
      {load<F32x8>(from), load<F32x8>(from + 8), load<F32x8>(from + 16), load<F32x8>(from + 24)}};
}
SPYRE_SIMD_INLINE void store_block(uint32_t* to, const Block& block) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) store(to + 8 * i, block.v[i]);
}

// How results are rounded: not at all, looking for what the format does not have, or not looking.
enum class Rounding { NONE, CHECKED, IN_RANGE };

// What a kernel that looks has seen.
template <Rounding kRounding>
struct Seen {
  void bounds() const {}
};
template <>
struct Seen<Rounding::CHECKED> {
  I32x8 most = {};
  U32x8 least = U32x8{} + ~0u;  // of magnitude - 1, so that zero counts as large

  Bounds bounds() const {
    const uint32_t largest = most_of(bits<U32x8>(most)), smallest = least_of(least) + 1;
    if (largest == 0) return Bounds::of(0);
    // Rounded numbers are not below the smallest one of the format.
    const bool is_small = smallest < static_cast<uint32_t>(kTiny);
    const bool is_large = largest >= static_cast<uint32_t>(kLarge - Dlfloat16::kHalfUlp);
    return {is_small ? 0x1p-31f : float_of(smallest) * 0.99f,
            is_large ? __builtin_inff() : float_of(largest) * 1.01f, true, true};
  }
};
template <Rounding kRounding>
using RoundingResult = std::conditional_t<kRounding == Rounding::CHECKED, Bounds, void>;

// All lanes are zero or within the format's range also after rounding.
SPYRE_SIMD_INLINE bool is_ordinary(const Block& block, Seen<Rounding::CHECKED>& seen) {
  I32x8 most = bits<I32x8>(block.v[0]) & 0x7fffffff;
  U32x8 least = bits<U32x8>(most) - 1;
#pragma GCC unroll 4
  for (int i = 1; i < 4; ++i) {
    const I32x8 magnitude = bits<I32x8>(block.v[i]) & 0x7fffffff;
    least = min(least, bits<U32x8>(magnitude) - 1);
    most = max(most, magnitude);
  }
  seen.most = max(seen.most, most);
  seen.least = min(seen.least, least);
  const I32x8 small = bits<I32x8>(least < static_cast<uint32_t>(kTiny - 1));
  return __builtin_expect(!any(small | (most >= kLarge - Dlfloat16::kHalfUlp)), 1);
}

[[gnu::noinline, gnu::cold]] void round_special(uint32_t* lanes) {
  for (int i = 0; i < kBlock; i += 8) store(lanes + i, round_dlf16(load<F32x8>(lanes + i)));
}

SPYRE_SIMD_INLINE Block rounded_in_range(Block block) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const I32x8 value = bits<I32x8>(block.v[j]);
    block.v[j] = bits<F32x8>((value + Dlfloat16::kHalfUlp) & ~kFraction);
  }
  return block;
}

// out = the blocks that make(first lane) gives, rounded. Special values are rare: they leave the
// inner loop, so that its constants stay in registers.
template <class Make>
SPYRE_SIMD_INLINE void round_blocks(uint32_t* out, int64_t first, int64_t end, const Make& make,
                                    Seen<Rounding::CHECKED>& seen) {
  for (int64_t i = first; i < end; i += kBlock) {
    for (; i < end; i += kBlock) {
      Block block = make(i);
      if (!is_ordinary(block, seen)) {
        store_block(out + i, block);
        break;
      }
      store_block(out + i, rounded_in_range(block));
    }
    if (i < end) round_special(out + i);
  }
}

// Codes of 32 lanes, and whether they are right: whether all are zero or ordinary.
//
// Before it is clamped, the code of what is below the format's range lies in (-kBelow, 0], that of
// zero and of what rounds to zero further down, and that of what is too large is kInfinity or NaN.
struct Codes {
  U16x16 first, second;
  bool ordinary;
};
SPYRE_SIMD_INLINE Codes encode_ordinary(const Block& block) {
  constexpr int32_t kRound = Dlfloat16::kHalfUlp - Dlfloat16::kRebias;
  constexpr int16_t kBelow =
      1 - ((Dlfloat16::kHalfTiny - Dlfloat16::kRebias + Dlfloat16::kHalfUlp) >> Dlfloat16::kShift);
  static_assert((kRound >> Dlfloat16::kShift) <= -kBelow);
  I16x16 number[2], sign[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const Pair<I32x8> value = {bits<I32x8>(block.v[2 * i]), bits<I32x8>(block.v[2 * i + 1])};
    number[i] = narrow_spread({((value.first & 0x7fffffff) + kRound) >> Dlfloat16::kShift,
                               ((value.second & 0x7fffffff) + kRound) >> Dlfloat16::kShift});
    sign[i] = narrow_spread(value) & static_cast<int16_t>(Dlfloat16::kSign);
  }
  const I16x16 most = max(number[0], number[1]);
  const U16x16 least = min(bits<U16x16>(number[0] + static_cast<int16_t>(kBelow - 1)),
                           bits<U16x16>(number[1] + static_cast<int16_t>(kBelow - 1)));
  const I16x16 special =
      (most >= int16_t{Dlfloat16::kInfinity}) | bits<I16x16>(least < static_cast<uint16_t>(kBelow));
  return {unspread(bits<U16x16>(max(number[0], I16x16{}) | sign[0])),
          unspread(bits<U16x16>(max(number[1], I16x16{}) | sign[1])), !any(bits<I32x8>(special))};
}

SPYRE_SIMD_INLINE U16x16 encode_any(const F32x8& first, const F32x8& second) {
  Pair<I32x8> code;
  for (int i = 0; i < 2; ++i) {
    const I32x8 value = bits<I32x8>(round_dlf16(i == 0 ? first : second));
    const I32x8 magnitude = value & 0x7fffffff;
    const I32x8 number = max((magnitude - Dlfloat16::kRebias) >> Dlfloat16::kShift, I32x8{});
    const I32x8 special = Dlfloat16::kInfinity - (magnitude > 0x7f800000);
    const I32x8 result = select(magnitude >= 0x7f800000, special, number) |
                         (value >> 16 & static_cast<int32_t>(Dlfloat16::kSign));
    (i == 0 ? code.first : code.second) = result;
  }
  return narrow_unsigned(code);
}

// Processors do not look beyond a page for what will be read next, and a tile is about a page.
constexpr int64_t kAhead = 4096;

[[gnu::noinline, gnu::cold]] void encode_special(std::byte* to, const uint32_t* values) {
  for (int i = 0; i < kBlock; i += 16) {
    store(to + 2 * i, encode_any(load<F32x8>(values + i), load<F32x8>(values + i + 8)));
  }
}

void encode_tile(std::byte* to, const uint32_t* values, int64_t lanes) {
  for (int64_t i = 0; i < lanes; i += kBlock) {
    for (; i < lanes; i += kBlock) {
      const Codes codes = encode_ordinary(load_block(values + i));
      __builtin_prefetch(to + 2 * i + kAhead, 1);
      if (__builtin_expect(!codes.ordinary, 0)) break;
      store(to + 2 * i, codes.first);
      store(to + 2 * i + 32, codes.second);
    }
    if (i < lanes) encode_special(to + 2 * i, values + i);
  }
}

void encode_in_range(std::byte* to, const uint32_t* values, int64_t lanes) {
  constexpr int32_t kRound = Dlfloat16::kHalfUlp - Dlfloat16::kRebias;
  for (int64_t i = 0; i < lanes; i += kBlock) {
    const Block block = load_block(values + i);
    __builtin_prefetch(to + 2 * i + kAhead, 1);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Pair<I32x8> value = {bits<I32x8>(block.v[2 * j]), bits<I32x8>(block.v[2 * j + 1])};
      const I16x16 number =
          narrow_spread({((value.first & 0x7fffffff) + kRound) >> Dlfloat16::kShift,
                         ((value.second & 0x7fffffff) + kRound) >> Dlfloat16::kShift});
      const I16x16 sign = narrow_spread(value) & static_cast<int16_t>(Dlfloat16::kSign);
      store(to + 2 * i + 32 * j, unspread(bits<U16x16>(max(number, I16x16{}) | sign)));
    }
  }
}

// The upper and lower halves of the float32 are made in 16-bit lanes and joined at the end.
template <bool kOrdinary>
SPYRE_SIMD_INLINE Pair<U32x8> decode(const I16x16& code, const I16x16& magnitude) {
  const Pair<I16x16> shifted = shift_apart(code);
  I16x16 low = shifted.first, high = shifted.second & static_cast<int16_t>(0x9fff);
  high += keep_at_numbers(I16x16{} + int16_t{Dlfloat16::kRebias >> 16}, magnitude);
  if (!kOrdinary) {
    const I16x16 special = magnitude >= int16_t{Dlfloat16::kInfinity};
    const I16x16 nan = magnitude == int16_t{Dlfloat16::kNan};
    // Both special codes have 0x4fff here; 0x7f80 is infinity, 0x7fc0 NaN.
    high += (special & int16_t{0x7f80 - 0x4fff}) + (nan & int16_t{0x40});
    low &= ~special;
  }
  return join_spread(bits<U16x16>(low), bits<U16x16>(high));
}

// The largest and the smallest magnitude less one; zero counts as small there and as large here.
struct SeenCodes {
  I16x16 most = {};
  U16x16 least = U16x16{} + uint16_t{0xffff};
};
template <bool kOrdinary>
SPYRE_SIMD_INLINE SeenCodes decode_blocks(uint32_t* values, const std::byte* from, int64_t lanes) {
  SeenCodes seen;
  for (int64_t i = 0; i < lanes; i += kBlock) {
    __builtin_prefetch(from + 2 * i + kAhead);
#pragma GCC unroll 2
    for (int64_t at = i; at < i + kBlock; at += 16) {
      const I16x16 code = bits<I16x16>(spread(load<U16x16>(from + 2 * at)));
      const I16x16 magnitude = code & int16_t{Dlfloat16::kMagnitude};
      seen.most = max(seen.most, magnitude);
      seen.least = min(seen.least, bits<U16x16>(magnitude - int16_t{1}));
      store(values + at, decode<kOrdinary>(code, magnitude));
    }
  }
  return seen;
}

Bounds decode_tile(uint32_t* values, const std::byte* from, int64_t lanes) {
  const SeenCodes seen = decode_blocks<true>(values, from, lanes);
  const uint16_t largest = most_of(bits<U16x16>(seen.most)), smallest = least_of(seen.least);
  if (__builtin_expect(largest >= Dlfloat16::kInfinity, 0)) {
    decode_blocks<false>(values, from, lanes);
    return {0.0f, __builtin_inff(), true, true};
  }
  if (largest == 0) return Bounds::of(0);
  return {decode_dlfloat16(static_cast<uint16_t>(smallest + 1)), decode_dlfloat16(largest), true,
          true};
}

// ----------------------------------------------------------------------------------------- tiles

// Lanes of any meaning as vectors of floats or integers.
template <class V>
SPYRE_SIMD_INLINE V lanes_at(const uint32_t* from, int64_t i) {
  return load<V>(from + i);
}

// Instructions that are so quick that rounding their results apart would cost as much again.
template <Rounding kRounding, class Make>
SPYRE_SIMD_INLINE void make_blocks(uint32_t* out, int64_t first, int64_t end, const Make& make,
                                   Seen<kRounding>& seen) {
  if constexpr (kRounding == Rounding::CHECKED) {
    round_blocks(out, first, end, make, seen);
  } else {
    for (int64_t i = first; i < end; i += kBlock) {
      const Block block = make(i);
      store_block(out + i, kRounding == Rounding::NONE ? block : rounded_in_range(block));
    }
  }
}
template <class Op, Rounding kRounding>
RoundingResult<kRounding> unary(const TileArguments& arguments) {
  Seen<kRounding> seen;
  const TileArguments t = arguments;
  make_blocks<kRounding>(
      t.out, 0, t.lanes,
      [&](int64_t i) SPYRE_SIMD_LAMBDA {
        Block block = load_block(t.a + i);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) block.v[j] = Op::apply(block.v[j]);
        return block;
      },
      seen);
  return seen.bounds();
}
template <class Op, Rounding kRounding>
RoundingResult<kRounding> binary(const TileArguments& arguments) {
  Seen<kRounding> seen;
  const TileArguments t = arguments;
  make_blocks<kRounding>(
      t.out, 0, t.lanes,
      [&](int64_t i) SPYRE_SIMD_LAMBDA {
        Block a = load_block(t.a + i);
        const Block b = load_block(t.b + i);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) a.v[j] = Op::apply(a.v[j], b.v[j]);
        return a;
      },
      seen);
  return seen.bounds();
}
// The same second operand in all lanes.
template <class Op, Rounding kRounding>
SPYRE_SIMD_INLINE void with_splat(const TileArguments& t, int64_t first, int64_t end, uint32_t b,
                                  Seen<kRounding>& seen) {
  const F32x8 splat_b = splat(float_of(b));
  make_blocks<kRounding>(
      t.out, first, end,
      [&](int64_t i) SPYRE_SIMD_LAMBDA {
        Block a = load_block(t.a + i);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) a.v[j] = Op::apply(a.v[j], splat_b);
        return a;
      },
      seen);
}
// One value of the second operand for each group of lanes.
template <class Op, Rounding kRounding>
RoundingResult<kRounding> binary_by_group(const TileArguments& arguments) {
  Seen<kRounding> seen;
  const TileArguments t = arguments;
  for (int64_t start = 0; start < t.lanes; start += t.period) {
    const uint32_t* b = t.b;
    for (int64_t at = start; at < start + t.period; at += t.group, b += t.b_step) {
      with_splat<Op, kRounding>(t, at, at + t.group, *b, seen);
    }
  }
  return seen.bounds();
}
// The same lanes of the second operand for each group.
template <class Op, Rounding kRounding>
RoundingResult<kRounding> binary_repeated(const TileArguments& arguments) {
  Seen<kRounding> seen;
  const TileArguments t = arguments;
  for (int64_t start = 0; start < t.lanes; start += t.group) {
    const uint32_t* b = t.b - start;
    make_blocks<kRounding>(
        t.out, start, start + t.group,
        [&](int64_t i) SPYRE_SIMD_LAMBDA {
          Block block = load_block(t.a + i);
          const Block other = load_block(b + i);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) block.v[j] = Op::apply(block.v[j], other.v[j]);
          return block;
        },
        seen);
  }
  return seen.bounds();
}
// Two instructions in one pass.
template <class First, class Second, Rounding kRounding>
RoundingResult<kRounding> pair_by_group(const TileArguments& arguments) {
  Seen<kRounding> seen;
  const TileArguments t = arguments;
  for (int64_t start = 0; start < t.lanes; start += t.period) {
    const uint32_t *b = t.b, *c = t.c;
    for (int64_t at = start; at < start + t.period; at += t.group, b += t.b_step, c += t.b_step) {
      const F32x8 first = splat(float_of(*b)), second = splat(float_of(*c));
      make_blocks<kRounding>(
          t.out, at, at + t.group,
          [&](int64_t i) SPYRE_SIMD_LAMBDA {
            Block block = load_block(t.a + i);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
              block.v[j] = Second::apply(First::apply(block.v[j], first), second);
            }
            return block;
          },
          seen);
    }
  }
  return seen.bounds();
}
template <class First, class Second, Rounding kRounding>
RoundingResult<kRounding> pair_repeated(const TileArguments& arguments) {
  Seen<kRounding> seen;
  const TileArguments t = arguments;
  for (int64_t start = 0; start < t.lanes; start += t.group) {
    const uint32_t *b = t.b - start, *c = t.c - start;
    make_blocks<kRounding>(
        t.out, start, start + t.group,
        [&](int64_t i) SPYRE_SIMD_LAMBDA {
          Block block = load_block(t.a + i);
          const Block first = load_block(b + i), second = load_block(c + i);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            block.v[j] = Second::apply(First::apply(block.v[j], first.v[j]), second.v[j]);
          }
          return block;
        },
        seen);
  }
  return seen.bounds();
}
// The second operand is immediate 0.
template <class Op, Rounding kRounding>
RoundingResult<kRounding> with_constant(const TileArguments& arguments) {
  Seen<kRounding> seen;
  const TileArguments t = arguments;
  with_splat<Op, kRounding>(t, 0, t.lanes, t.imm0, seen);
  return seen.bounds();
}

// Instructions that take long.
template <class Op>
void long_unary(const TileArguments& arguments) {
  const TileArguments t = arguments;
#pragma GCC unroll 2
  for (int64_t i = 0; i < t.lanes; i += 8) store(t.out + i, Op::apply(lanes_at<F32x8>(t.a, i)));
}
template <class Op>
void long_binary(const TileArguments& arguments) {
  const TileArguments t = arguments;
  for (int64_t i = 0; i < t.lanes; i += 8) {
    store(t.out + i, Op::apply(lanes_at<F32x8>(t.a, i), lanes_at<F32x8>(t.b, i)));
  }
}

template <class Op>
void int_unary(const TileArguments& arguments) {
  const TileArguments t = arguments;
  for (int64_t i = 0; i < t.lanes; i += 8) store(t.out + i, Op::apply(lanes_at<I32x8>(t.a, i)));
}
template <class Op>
void int_binary(const TileArguments& arguments) {
  const TileArguments t = arguments;
  for (int64_t i = 0; i < t.lanes; i += 8) {
    store(t.out + i, Op::apply(lanes_at<I32x8>(t.a, i), lanes_at<I32x8>(t.b, i)));
  }
}

void where(const TileArguments& arguments) {
  const TileArguments t = arguments;
  for (int64_t i = 0; i < t.lanes; i += 8) {
    const I32x8 yes = lanes_at<F32x8>(t.a, i) != 0.0f;
    store(t.out + i, select(yes, lanes_at<I32x8>(t.b, i), lanes_at<I32x8>(t.c, i)));
  }
}

template <Rounding kRounding>
RoundingResult<kRounding> clip(const TileArguments& arguments) {
  Seen<kRounding> seen;
  const TileArguments t = arguments;
  const F32x8 low = splat(float_of(t.imm0)), high = splat(float_of(t.imm1));
  make_blocks<kRounding>(
      t.out, 0, t.lanes,
      [&](int64_t i) SPYRE_SIMD_LAMBDA {
        Block block = load_block(t.a + i);
    // The value is the second operand: NaN stays.
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) block.v[j] = min(high, max(low, block.v[j]));
        return block;
      },
      seen);
  return seen.bounds();
}

void softplus(const TileArguments& arguments) {
  const TileArguments t = arguments;
  const F32x8 beta = splat(float_of(t.imm0)), threshold = splat(float_of(t.imm1));
  for (int64_t i = 0; i < t.lanes; i += 8) {
    const F32x8 a = lanes_at<F32x8>(t.a, i);
    const F32x8 scaled = a * beta;
    store(t.out + i, select(scaled > threshold, a, log1p(exp(scaled)) / beta));
  }
}

void constant(const TileArguments& arguments) {
  const TileArguments t = arguments;
  const U32x8 value = U32x8{} + t.imm0;
  for (int64_t i = 0; i < t.lanes; i += 8) store(t.out + i, value);
}

// The order DL16_TO_FP32: of each 64 lanes, groups of four go in turn to the first and to the
// second stick of 32.
void widen(const TileArguments& t) {
  for (int64_t i = 0; i < t.lanes; i += 64) {
    uint32_t in[64];
    std::memcpy(in, t.a + i, sizeof in);
    for (int four = 0; four < 16; ++four) {
      std::memcpy(t.out + i + four % 2 * 32 + four / 2 * 4, in + four * 4, 16);
    }
  }
}
void narrow_order(const TileArguments& t) {
  for (int64_t i = 0; i < t.lanes; i += 64) {
    uint32_t in[64];
    std::memcpy(in, t.a + i, sizeof in);
    for (int four = 0; four < 16; ++four) {
      std::memcpy(t.out + i + four * 4, in + four % 2 * 32 + four / 2 * 4, 16);
    }
  }
}

Bounds round_tile(uint32_t* out, const uint32_t* in, int64_t lanes) {
  Seen<Rounding::CHECKED> seen;
  round_blocks(
      out, 0, lanes, [&](int64_t i) SPYRE_SIMD_LAMBDA { return load_block(in + i); }, seen);
  return seen.bounds();
}

// ------------------------------------------------------------------------------------ reductions

template <class Op>
void fold(uint32_t* total, const uint32_t* values, int64_t lanes) {
#pragma GCC unroll 2
  for (int64_t i = 0; i < lanes; i += 8) {
    store(total + i, Op::apply(lanes_at<F32x8>(total, i), lanes_at<F32x8>(values, i)));
  }
}

template <class Op>
void fold_masked(uint32_t* total, const uint32_t* values, const uint32_t* mask, int group,
                 int64_t lanes) {
  for (int64_t first = 0; first < lanes; first += group) {
    for (int64_t i = 0; i < group; i += 8) {
      const F32x8 old = lanes_at<F32x8>(total, first + i);
      const F32x8 sum = Op::apply(old, lanes_at<F32x8>(values, first + i));
      store(total + first + i, select(lanes_at<I32x8>(mask, i), sum, old));
    }
  }
}

// Lane i is lane i + kBy of the value, the lanes going around.
template <int kBy>
SPYRE_SIMD_INLINE F32x8 rotated(const F32x8& value) {
#if defined(__clang__)
  return __builtin_shufflevector(value, value, kBy, (kBy + 1) % 8, (kBy + 2) % 8, (kBy + 3) % 8,
                                 (kBy + 4) % 8, (kBy + 5) % 8, (kBy + 6) % 8, (kBy + 7) % 8);
#else
  constexpr I32x8 kFrom = {kBy,           (kBy + 1) % 8, (kBy + 2) % 8, (kBy + 3) % 8,
                           (kBy + 4) % 8, (kBy + 5) % 8, (kBy + 6) % 8, (kBy + 7) % 8};
  return __builtin_shuffle(value, kFrom);
#endif
}

// Vectors of 8 lanes first, one after another; then halves of the vector.
template <class Op>
void fold_lanes(uint32_t* totals, int group, int64_t lanes) {
  for (int64_t first = 0; first < lanes; first += group) {
    F32x8 total = lanes_at<F32x8>(totals, first);
    for (int i = 8; i < group; i += 8) {
      total = Op::apply(total, lanes_at<F32x8>(totals, first + i));
    }
    total = Op::apply(total, rotated<4>(total));
    total = Op::apply(total, rotated<2>(total));
    total = Op::apply(total, rotated<1>(total));
    total = splat(total[0]);
    for (int i = 0; i < group; i += 8) store(totals + first + i, total);
  }
}

// A product of two float32 is exact in float64, so nothing here can be fused to another result.
template <bool kMasked>
void add_moments_in(double* sums, double* squares, const uint32_t* values, const uint32_t* mask,
                    int64_t lanes) {
  typedef uint32_t U32x4 __attribute__((vector_size(16)));
  for (int64_t i = 0; i < lanes; i += 4) {
    U32x4 lane_bits = load<U32x4>(values + i);
    if (kMasked) lane_bits &= load<U32x4>(mask + i);
    const F64x4 value = __builtin_convertvector((F32x4)lane_bits, F64x4);
    store(sums + i, load<F64x4>(sums + i) + value);
    store(squares + i, load<F64x4>(squares + i) + value * value);
  }
}
void add_moments(double* sums, double* squares, const uint32_t* values, const uint32_t* mask,
                 int64_t lanes) {
  if (mask != nullptr) {
    add_moments_in<true>(sums, squares, values, mask, lanes);
  } else {
    add_moments_in<false>(sums, squares, values, nullptr, lanes);
  }
}

// Of 32 lanes as machine code has them (jit/machine_code.cpp): vectors of 8, here of twice 4, as
// ((0 + 1) + (2 + 3)), their squares one after another; then to what was there.
template <bool kMasked>
void add_group_moments_in(double* sums, double* squares, const uint32_t* values,
                          const uint32_t* mask, int group, int64_t lanes) {
  typedef uint32_t U32x4 __attribute__((vector_size(16)));
  for (int64_t first = 0; first < lanes; first += group) {
    for (int64_t i = 0; i < group; i += kBlock) {
      for (int half = 0; half < kMomentParts; half += 4) {
        F64x4 eights[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          U32x4 four = load<U32x4>(values + first + i + 8 * j + half);
          if (kMasked) four &= load<U32x4>(mask + i + 8 * j + half);
          eights[j] = __builtin_convertvector((F32x4)four, F64x4);
        }
        F64x4 square = eights[0] * eights[0];
#pragma GCC unroll 4
        for (int j = 1; j < 4; ++j) square = fma(eights[j], eights[j], square);
        store(squares + half, load<F64x4>(squares + half) + square);
        const F64x4 sum = (eights[0] + eights[1]) + (eights[2] + eights[3]);
        store(sums + half, load<F64x4>(sums + half) + sum);
      }
    }
    sums += kMomentParts;
    squares += kMomentParts;
  }
}
void add_group_moments(double* sums, double* squares, const uint32_t* values, const uint32_t* mask,
                       int group, int64_t lanes) {
  if (mask != nullptr) {
    add_group_moments_in<true>(sums, squares, values, mask, group, lanes);
  } else {
    add_group_moments_in<false>(sums, squares, values, nullptr, group, lanes);
  }
}

// Squares of 10 bits have 20: a sum of four is exact in float32 unless one number is more than
// twice as large as another. Then these four alone have a variance that is large against the error,
// so that it never matters, however far from zero the mean is (docs/decisions/0046).
SPYRE_SIMD_INLINE F32x8 every_other(const F32x8& a, const F32x8& b, int first) {
  return first == 0 ? __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
                    : __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}
template <bool kMasked>
void add_short_moments_in(double* sums, double* squares, const uint32_t* values,
                          const uint32_t* mask, int group, int64_t lanes) {
  const auto add_to = [](double* total, const F32x8& eight) {
    float lower[8];
    store(lower, eight);
    for (int half = 0; half < 8; half += 4) {
      const F64x4 four = __builtin_convertvector(load<F32x4>(lower + half), F64x4);
      store(total + half, load<F64x4>(total + half) + four);
    }
  };
  for (int64_t first = 0; first < lanes; first += group) {
    for (int64_t i = 0; i < group; i += kBlock) {
      F32x8 v[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        U32x8 eight = load<U32x8>(values + first + i + 8 * j);
        if (kMasked) eight &= load<U32x8>(mask + i + 8 * j);
        v[j] = bits<F32x8>(eight);
      }
      // Neighbours meet first.
      const F32x8 even[2] = {every_other(v[0], v[1], 0), every_other(v[2], v[3], 0)};
      const F32x8 odd[2] = {every_other(v[0], v[1], 1), every_other(v[2], v[3], 1)};
      add_to(sums, (even[0] + odd[0]) + (even[1] + odd[1]));
      add_to(squares,
             fma(odd[0], odd[0], even[0] * even[0]) + fma(odd[1], odd[1], even[1] * even[1]));
    }
    sums += kMomentParts;
    squares += kMomentParts;
  }
}
void add_short_moments(double* sums, double* squares, const uint32_t* values, const uint32_t* mask,
                       int group, int64_t lanes) {
  if (mask != nullptr) {
    add_short_moments_in<true>(sums, squares, values, mask, group, lanes);
  } else {
    add_short_moments_in<false>(sums, squares, values, nullptr, group, lanes);
  }
}
void fold_moments(double* totals, int64_t groups) {
  for (int64_t i = 0; i < groups; i++) {
    double* t = totals + i * kMomentParts;
    t[0] = ((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + (t[6] + t[7]));
  }
}

// ----------------------------------------------------------------------------------------- table

template <template <Rounding> class Kernel>
constexpr Kernels kernels() {
  return {Kernel<Rounding::NONE>::run, Kernel<Rounding::CHECKED>::run,
          Kernel<Rounding::IN_RANGE>::run};
}

// One loop over tiles with any of its operations, as an argument of kernels().
#define SPYRE_LOOP(Name, function)                                              \
  template <class... Ops>                                                       \
  struct Name {                                                                 \
    template <Rounding kRounding>                                               \
    struct With {                                                               \
      static constexpr RoundingResult<kRounding> (*run)(const TileArguments&) = \
          function<Ops..., kRounding>;                                          \
    };                                                                          \
    static constexpr Kernels all() { return kernels<With>(); }                  \
  };
SPYRE_LOOP(Unary, unary)
SPYRE_LOOP(Binary, binary)
SPYRE_LOOP(ByGroup, binary_by_group)
SPYRE_LOOP(Repeated, binary_repeated)
SPYRE_LOOP(WithConstant, with_constant)
SPYRE_LOOP(PairByGroup, pair_by_group)
SPYRE_LOOP(PairRepeated, pair_repeated)
SPYRE_LOOP(Clip, clip)
#undef SPYRE_LOOP

// Binary operations that are quick.
template <template <class...> class Loop>
constexpr void add_quick_kernels(Kernels* table) {
  table[ADD] = Loop<Add>::all();
  table[SUB] = Loop<Sub>::all();
  table[MUL] = Loop<Mul>::all();
  table[DIV] = Loop<Div>::all();
  table[MAXIMUM] = Loop<Maximum>::all();
  table[MINIMUM] = Loop<Minimum>::all();
}

constexpr TileTable make_table() {
  TileTable table = {};
  table.registers[ABS] = Unary<Abs>::all();
  table.registers[NEG] = Unary<Neg>::all();
  table.registers[SQRT] = Unary<Sqrt>::all();
  table.registers[RECIPROCAL] = Unary<Reciprocal>::all();
  table.registers[RELU] = Unary<Relu>::all();
  table.registers[SHORT_EXP] = Unary<ShortExp>::all();
  table.registers[SHORT_SIGMOID] = Unary<ShortSigmoid>::all();
  table.registers[SHORT_TANH] = Unary<ShortTanh>::all();
  table.registers[SHORT_SILU] = Unary<ShortSilu>::all();
  table.registers[SHORT_GELU_ERF] = Unary<ShortGeluErf>::all();
  table.registers[SHORT_GELU_TANH] = Unary<ShortGeluTanh>::all();
  table.registers[SHORT_EXP].rounded = unary<ShortExpOrZero, Rounding::CHECKED>;
  table.registers[CLIP] = Clip<>::all();
  table.registers[ADD_CONSTANT] = WithConstant<Add>::all();
  table.registers[MUL_CONSTANT] = WithConstant<Mul>::all();
  add_quick_kernels<Binary>(table.registers);
  add_quick_kernels<ByGroup>(table.by_group);
  add_quick_kernels<Repeated>(table.repeated);
  table.pair_by_group[SUB_MUL] = PairByGroup<Sub, Mul>::all();
  table.pair_by_group[MUL_ADD] = PairByGroup<Mul, Add>::all();
  table.pair_repeated[SUB_MUL] = PairRepeated<Sub, Mul>::all();
  table.pair_repeated[MUL_ADD] = PairRepeated<Mul, Add>::all();
  table.registers[EXP].plain = long_unary<Exp>;
  table.registers[LOG].plain = long_unary<Log>;
  table.registers[RSQRT].plain = long_unary<Rsqrt>;
  table.registers[SIGMOID].plain = long_unary<Sigmoid>;
  table.registers[TANH].plain = long_unary<Tanh>;
  table.registers[SILU].plain = long_unary<Silu>;
  table.registers[GELU_ERF].plain = long_unary<GeluErf>;
  table.registers[GELU_TANH].plain = long_unary<GeluTanh>;
  table.registers[FLOOR].plain = unary<Floor, Rounding::NONE>;
  table.registers[CEIL].plain = unary<Ceil, Rounding::NONE>;
  table.registers[TRUNC].plain = unary<Trunc, Rounding::NONE>;
  table.registers[ROUND_EVEN].plain = unary<RoundEven, Rounding::NONE>;
  table.registers[SIN].plain = long_unary<Sin>;
  table.registers[COS].plain = long_unary<Cos>;
  table.registers[ERF].plain = long_unary<Erf>;
  table.registers[LOG1P].plain = long_unary<Log1p>;
  table.registers[EXPM1].plain = long_unary<Expm1>;
  table.registers[ISNAN].plain = unary<IsNan, Rounding::NONE>;
  table.registers[COPY].plain = unary<Copy, Rounding::NONE>;
  table.registers[EQ].plain = binary<Eq, Rounding::NONE>;
  table.registers[NE].plain = binary<Ne, Rounding::NONE>;
  table.registers[LT].plain = binary<Lt, Rounding::NONE>;
  table.registers[LE].plain = binary<Le, Rounding::NONE>;
  table.registers[GT].plain = binary<Gt, Rounding::NONE>;
  table.registers[GE].plain = binary<Ge, Rounding::NONE>;
  table.registers[POW].plain = long_binary<Pow>;
  table.registers[WHERE].plain = where;
  table.registers[SOFTPLUS].plain = softplus;
  table.registers[CONSTANT].plain = constant;
  table.registers[WIDEN].plain = widen;
  table.registers[NARROW].plain = narrow_order;
  table.registers[INT_TO_FLOAT].plain = int_unary<IntToFloat>;
  table.registers[FLOAT_TO_INT].plain = int_unary<FloatToInt>;
  table.registers[CONSTANT_BITS].plain = constant;
  table.registers[INT_ABS].plain = int_unary<IntAbs>;
  table.registers[INT_NEG].plain = int_unary<IntNeg>;
  table.registers[INT_ADD].plain = int_binary<IntAdd>;
  table.registers[INT_SUB].plain = int_binary<IntSub>;
  table.registers[INT_MUL].plain = int_binary<IntMul>;
  table.registers[INT_MAX_OF].plain = int_binary<IntMax>;
  table.registers[INT_MIN_OF].plain = int_binary<IntMin>;
  table.registers[INT_EQ].plain = int_binary<IntEq>;
  table.registers[INT_NE].plain = int_binary<IntNe>;
  table.registers[INT_LT].plain = int_binary<IntLt>;
  table.registers[INT_LE].plain = int_binary<IntLe>;
  table.registers[INT_GT].plain = int_binary<IntGt>;
  table.registers[INT_GE].plain = int_binary<IntGe>;
  table.round_dlfloat16 = round_tile;
  table.encode_dlfloat16 = encode_tile;
  table.encode_in_range = encode_in_range;
  table.decode_dlfloat16 = decode_tile;
  // In the order of ReduceOp.
  table.fold[0] = fold<Add>;
  table.fold[1] = fold<Maximum>;
  table.fold[2] = fold<Minimum>;
  table.fold[3] = fold<Mul>;
  table.fold_masked[0] = fold_masked<Add>;
  table.fold_masked[1] = fold_masked<Maximum>;
  table.fold_masked[2] = fold_masked<Minimum>;
  table.fold_masked[3] = fold_masked<Mul>;
  table.fold_lanes[0] = fold_lanes<Add>;
  table.fold_lanes[1] = fold_lanes<Maximum>;
  table.fold_lanes[2] = fold_lanes<Minimum>;
  table.fold_lanes[3] = fold_lanes<Mul>;
  table.add_moments = add_moments;
  table.add_group_moments = add_group_moments;
  table.add_short_moments = add_short_moments;
  table.fold_moments = fold_moments;
  return table;
}

}  // namespace

extern const TileTable kTileTable = make_table();

}  // namespace spyre::card::SPYRE_SIMD_NAMESPACE
