// DLFloat16 against a slow definition of its own: the values of all codes in double, and a search
// for the nearest one. Every form (scalar, AVX2, portable) must give the same bits.
#include "numerics/dlfloat16.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "numerics/convert.h"
#include "support/check.h"

using namespace spyre::card;

namespace {

constexpr int kCodes = 65536;
constexpr int kInfinityCode = 0x7ffe;
constexpr int kNanCode = 0x7fff;

// magnitudes()[a] for a = 0 ... 0x7ffe; the last is what the infinity code would be as a number,
// which is where rounding past the largest finite value begins.
const std::vector<double>& magnitudes() {
  static const std::vector<double> table = [] {
    std::vector<double> values = {0.0};
    for (int a = 1; a <= kInfinityCode; ++a) {
      values.push_back(std::ldexp(1.0 + (a % 512) / 512.0, a / 512 - 31));
    }
    return values;
  }();
  return table;
}

double slow_decode(uint16_t code) {
  const int a = code & 0x7fff;
  const double sign = code & 0x8000 ? -1.0 : 1.0;
  if (a == kNanCode) return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
  if (a == kInfinityCode) return sign * std::numeric_limits<double>::infinity();
  return std::copysign(magnitudes()[a], sign);
}

uint16_t slow_encode(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | kNanCode;
  const double magnitude = std::fabs(value);
  const auto& table = magnitudes();
  const auto above = std::lower_bound(table.begin(), table.end(), magnitude);
  if (above == table.end()) return sign | kInfinityCode;
  int code = static_cast<int>(above - table.begin());
  if (code > 0) {
    // Half way is exact in double; on it, away from zero.
    const double middle = (table[code - 1] + table[code]) / 2;
    if (magnitude < middle) --code;
  }
  return sign | static_cast<uint16_t>(code);
}

std::vector<Simd> forms() {
  std::vector<Simd> result = {Simd::PORTABLE};
  if (has_simd(Simd::AVX2)) result.push_back(Simd::AVX2);
  return result;
}

uint32_t float_bits(float value) { return std::bit_cast<uint32_t>(value); }

// Checks the scalar and all array forms on these values.
void check_encode(const std::vector<float>& values) {
  std::vector<uint16_t> expected(values.size()), codes(values.size());
  for (size_t i = 0; i < values.size(); ++i) expected[i] = slow_encode(values[i]);
  for (size_t i = 0; i < values.size(); ++i) codes[i] = encode_dlfloat16(values[i]);
  for (size_t i = 0; i < values.size(); ++i) {
    if (codes[i] != expected[i]) {
      std::printf("  scalar: %a\n", values[i]);
      CHECK_EQ(codes[i], expected[i]);
    }
  }
  for (Simd simd : forms()) {
    std::fill(codes.begin(), codes.end(), 0x1234);
    encode_dlfloat16(values.data(), codes.data(), static_cast<int64_t>(values.size()), simd);
    for (size_t i = 0; i < values.size(); ++i) {
      if (codes[i] != expected[i]) {
        std::printf("  form %d: %a\n", static_cast<int>(simd), values[i]);
        CHECK_EQ(codes[i], expected[i]);
      }
    }
  }
}

std::vector<uint16_t> all_codes() {
  std::vector<uint16_t> codes(kCodes);
  for (int c = 0; c < kCodes; ++c) codes[c] = static_cast<uint16_t>(c);
  return codes;
}

// All 65,536 patterns through one conversion of a table.
std::vector<uint16_t> convert16(Simd simd, Conversion conversion, bool to_card) {
  const ConvertTable& table = convert_table(simd);
  const std::vector<uint16_t> from = all_codes();
  std::vector<uint16_t> to(kCodes);
  const int index = static_cast<int>(conversion);
  const ConvertRows rows = to_card ? table.to_card[index] : table.from_card[index];
  CHECK(rows(reinterpret_cast<std::byte*>(to.data()), 0,
             reinterpret_cast<const std::byte*>(from.data()), 0, 1, kCodes, Stores::CACHED));
  return to;
}

double half_value(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  double magnitude;
  if (exponent == 31) {
    magnitude = fraction ? std::numeric_limits<double>::quiet_NaN()
                         : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, -24);
  } else {
    magnitude = std::ldexp(1024 + fraction, exponent - 25);
  }
  return std::copysign(magnitude, half & 0x8000 ? -1.0 : 1.0);
}

// The half that a value read from the card becomes, by search over all finite halves.
uint16_t slow_half_from_card(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude > 65536) return sign | 0x7c00;
  if (magnitude >= 65504) return sign | 0x7bff;
  int low = 0, high = 0x7bff;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (half_value(static_cast<uint16_t>(middle)) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - half_value(static_cast<uint16_t>(low));
  const double above = half_value(static_cast<uint16_t>(high)) - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

bool is_half_nan(uint16_t half) { return (half & 0x7fff) > 0x7c00; }

}  // namespace

TEST(the_documented_examples_hold) {
  CHECK_EQ(encode_dlfloat16(1.0f), 0x3e00);
  CHECK_EQ(decode_dlfloat16(0x3e00), 1.0f);
  CHECK_EQ(decode_dlfloat16(encode_dlfloat16(65504.0f)), 65536.0f);
  CHECK_EQ(encode_dlfloat16(-0.0f), 0x8000);
  CHECK_EQ(encode_dlfloat16(INFINITY), 0x7ffe);
  CHECK_EQ(encode_dlfloat16(-INFINITY), 0xfffe);
  CHECK_EQ(encode_dlfloat16(NAN) & 0x7fff, 0x7fff);
  CHECK_EQ(encode_dlfloat16(3e38f), 0x7ffe);
  CHECK_EQ(encode_dlfloat16(-1e-38f), 0x8000);
}

TEST(the_gap_above_zero_is_split_in_the_middle) {
  const float tiny = std::ldexp(513.0f / 512, -31);
  CHECK_EQ(decode_dlfloat16(1), tiny);
  CHECK_EQ(encode_dlfloat16(tiny / 2), 1);
  CHECK_EQ(encode_dlfloat16(std::nextafter(tiny / 2, 0.0f)), 0);
  CHECK_EQ(encode_dlfloat16(-tiny / 2), 0x8001);
  CHECK_EQ(encode_dlfloat16(std::ldexp(1.0f, -31)), 1);  // not a number of the format
  CHECK_EQ(encode_dlfloat16(std::ldexp(1.0f, -32)), 0);  // below the middle
}

TEST(the_last_finite_value_ends_half_way_to_infinity) {
  const float last = decode_dlfloat16(0x7ffd);
  const float middle = std::ldexp(1 + 509.5f / 512, 32);
  CHECK_EQ(last, std::ldexp(1 + 509.0f / 512, 32));
  CHECK_EQ(encode_dlfloat16(std::nextafter(middle, 0.0f)), 0x7ffd);
  CHECK_EQ(encode_dlfloat16(middle), 0x7ffe);
}

TEST(every_code_decodes_to_its_defined_value_in_every_form) {
  const std::vector<uint16_t> codes = all_codes();
  for (Simd simd : forms()) {
    std::vector<float> values(kCodes);
    decode_dlfloat16(codes.data(), values.data(), kCodes, simd);
    for (int c = 0; c < kCodes; ++c) {
      const double expected = slow_decode(static_cast<uint16_t>(c));
      const float scalar = decode_dlfloat16(static_cast<uint16_t>(c));
      CHECK_EQ(float_bits(values[c]), float_bits(scalar));
      if (std::isnan(expected)) {
        CHECK(std::isnan(scalar));
      } else {
        CHECK_EQ(static_cast<double>(scalar), expected);
        CHECK_EQ(std::signbit(scalar), std::signbit(expected));
      }
    }
  }
}

TEST(every_code_survives_decode_and_encode) {
  for (int c = 0; c < kCodes; ++c) {
    CHECK_EQ(encode_dlfloat16(decode_dlfloat16(static_cast<uint16_t>(c))), c);
  }
}

TEST(values_around_every_midpoint_round_to_nearest_ties_away) {
  std::vector<float> values;
  for (int a = 0; a < kInfinityCode; ++a) {
    const double middle = (magnitudes()[a] + magnitudes()[a + 1]) / 2;
    const float exact = static_cast<float>(middle);
    CHECK_EQ(static_cast<double>(exact), middle);
    for (float magnitude : {exact, std::nextafter(exact, 0.0f), std::nextafter(exact, INFINITY),
                            static_cast<float>(magnitudes()[a])}) {
      values.push_back(magnitude);
      values.push_back(-magnitude);
    }
  }
  check_encode(values);
}

TEST(ten_million_random_float32_patterns_encode_alike_in_all_forms) {
  std::mt19937_64 random(12345);
  std::vector<float> values(1'000'000);
  for (int round = 0; round < 10; ++round) {
    for (float& value : values) {
      uint32_t pattern = static_cast<uint32_t>(random());
      // Every other round stays near the range of the format, where rounding matters.
      if (round % 2) pattern = (pattern & 0x807fffff) | (94 + (pattern >> 23 & 0xff) % 68) << 23;
      value = std::bit_cast<float>(pattern);
    }
    check_encode(values);
  }
}

TEST(special_float32_patterns_encode_alike_in_all_forms) {
  std::vector<float> values;
  for (uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t pattern : {0u, 1u, 0x7fffffu, 0x800000u, 0x7f7fffffu, 0x7f800000u, 0x7f800001u,
                             0x7fbfffffu, 0x7fc00000u, 0x7fffffffu}) {
      values.push_back(std::bit_cast<float>(sign | pattern));
    }
  }
  check_encode(values);
}

TEST(arrays_of_every_length_are_converted_and_nothing_beyond) {
  for (Simd simd : forms()) {
    for (int64_t count = 0; count < 70; ++count) {
      std::vector<float> values(count);
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) - 30.5f;
      std::vector<uint16_t> codes(count + 16, 0xabcd);
      encode_dlfloat16(values.data(), codes.data(), count, simd);
      std::vector<float> back(count + 16, -7.0f);
      decode_dlfloat16(codes.data(), back.data(), count, simd);
      for (int64_t i = 0; i < count; ++i) {
        CHECK_EQ(codes[i], slow_encode(values[i]));
        CHECK_EQ(back[i], values[i]);
      }
      for (int64_t i = count; i < count + 16; ++i) {
        CHECK_EQ(codes[i], 0xabcd);
        CHECK_EQ(back[i], -7.0f);
      }
    }
  }
}

TEST(every_half_becomes_the_nearest_code) {
  for (Simd simd : forms()) {
    const auto codes = convert16(simd, Conversion::F16_DLF16, true);
    for (int h = 0; h < kCodes; ++h) {
      CHECK_EQ(codes[h], slow_encode(half_value(static_cast<uint16_t>(h))));
    }
  }
}

TEST(every_half_is_converted_the_same_alone_and_among_numbers) {
  // The integer path and the path for rare values share a vector of 16: try both for each half.
  for (Simd simd : forms()) {
    const ConvertRows rows = convert_table(simd).to_card[static_cast<int>(Conversion::F16_DLF16)];
    for (int h = 0; h < kCodes; ++h) {
      uint16_t from[16], to[16];
      for (int i = 0; i < 16; ++i) from[i] = 0x3c00;
      from[h % 16] = static_cast<uint16_t>(h);
      rows(reinterpret_cast<std::byte*>(to), 0, reinterpret_cast<const std::byte*>(from), 0, 1, 16,
           Stores::CACHED);
      CHECK_EQ(to[h % 16], slow_encode(half_value(static_cast<uint16_t>(h))));
      CHECK_EQ(to[(h + 1) % 16], 0x3e00);
    }
  }
}

TEST(every_code_becomes_the_nearest_half) {
  for (Simd simd : forms()) {
    const auto halves = convert16(simd, Conversion::F16_DLF16, false);
    for (int c = 0; c < kCodes; ++c) {
      const double value = slow_decode(static_cast<uint16_t>(c));
      if (std::isnan(value)) {
        CHECK(is_half_nan(halves[c]));
      } else {
        CHECK_EQ(halves[c], slow_half_from_card(value));
      }
    }
  }
}

TEST(a_code_of_the_half_range_is_converted_the_same_among_rare_ones) {
  for (Simd simd : forms()) {
    const ConvertRows rows = convert_table(simd).from_card[static_cast<int>(Conversion::F16_DLF16)];
    for (int c = 0; c < 0x7fff; c += 3) {
      uint16_t from[16], to[16];
      for (int i = 0; i < 16; ++i) from[i] = static_cast<uint16_t>(c);
      from[5] = 0x7ffe;
      rows(reinterpret_cast<std::byte*>(to), 0, reinterpret_cast<const std::byte*>(from), 0, 1, 16,
           Stores::CACHED);
      CHECK_EQ(to[5], 0x7c00);
      CHECK_EQ(to[4], slow_half_from_card(slow_decode(static_cast<uint16_t>(c))));
    }
  }
}

TEST(halves_in_range_survive_the_card_but_for_their_last_bit) {
  for (Simd simd : forms()) {
    const auto codes = convert16(simd, Conversion::F16_DLF16, true);
    const auto halves = convert16(simd, Conversion::F16_DLF16, false);
    CHECK_EQ(halves[codes[0x7bff]], 0x7bff);  // 65504
    CHECK_EQ(halves[codes[0x7c00]], 0x7c00);  // infinity
    CHECK_EQ(halves[codes[0xfc00]], 0xfc00);
    for (int h = 0; h < 0x7c00; h += h < 0x400 ? 1 : 2) CHECK_EQ(halves[codes[h]], h);
  }
}

TEST(every_bfloat16_becomes_the_nearest_code_and_back) {
  for (Simd simd : forms()) {
    const auto codes = convert16(simd, Conversion::BF16_DLF16, true);
    const auto back = convert16(simd, Conversion::BF16_DLF16, false);
    for (int b = 0; b < kCodes; ++b) {
      CHECK_EQ(codes[b], slow_encode(std::bit_cast<float>(static_cast<uint32_t>(b) << 16)));
    }
    for (int c = 0; c < kCodes; ++c) {
      const double value = slow_decode(static_cast<uint16_t>(c));
      if (std::isnan(value)) {
        CHECK((back[c] & 0x7fff) > 0x7f80);
        continue;
      }
      // Truncated and the next one up, in magnitude: the nearer, or the even one.
      const uint32_t low = float_bits(static_cast<float>(value)) >> 16;
      const double below = std::fabs(value - std::bit_cast<float>(low << 16));
      const double above = std::fabs(std::bit_cast<float>((low + 1) << 16) - value);
      const bool up = std::isfinite(value) && (above < below || (above == below && low % 2 == 1));
      CHECK_EQ(back[c], up ? low + 1 : low);
    }
  }
}
