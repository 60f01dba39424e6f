// The row kernels other than DLFloat16: IEEE half, bfloat16, booleans, integers, copies,
// transposes. All forms must agree with definitions in double that share no code with them.
#include "numerics/convert.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "support/check.h"

using namespace spyre::card;

namespace {

std::vector<Simd> forms() {
  std::vector<Simd> result = {Simd::PORTABLE};
  if (has_simd(Simd::AVX2)) result.push_back(Simd::AVX2);
  return result;
}

template <class To, class From>
std::vector<To> convert(Simd simd, Conversion conversion, bool to_card,
                        const std::vector<From>& from) {
  const ConvertTable& table = convert_table(simd);
  std::vector<To> to(from.size());
  const int index = static_cast<int>(conversion);
  (to_card ? table.to_card : table.from_card)[index](
      reinterpret_cast<std::byte*>(to.data()), 0, reinterpret_cast<const std::byte*>(from.data()),
      0, 1, static_cast<int64_t>(from.size()), Stores::CACHED);
  return to;
}

std::vector<uint16_t> all_codes() {
  std::vector<uint16_t> codes(65536);
  for (int c = 0; c < 65536; ++c) codes[c] = static_cast<uint16_t>(c);
  return codes;
}

// The values of the finite, non-negative codes of a format, in order, then the next one up.
std::vector<double> finite_values(int exponent_bits, int fraction_bits, int bias) {
  std::vector<double> values;
  for (int exponent = 0; exponent < (1 << exponent_bits) - 1; ++exponent) {
    for (int fraction = 0; fraction < 1 << fraction_bits; ++fraction) {
      const int scale = std::max(exponent, 1) - bias - fraction_bits;
      values.push_back(std::ldexp(fraction + (exponent ? 1 << fraction_bits : 0), scale));
    }
  }
  values.push_back(2 * values[values.size() - (1 << fraction_bits)]);
  return values;
}

const std::vector<double>& half_values() {
  static const std::vector<double> values = finite_values(5, 10, 15);
  return values;
}
const std::vector<double>& bf16_values() {
  static const std::vector<double> values = finite_values(8, 7, 127);
  return values;
}

// Nearest, ties to even; the last of the values stands for infinity.
uint16_t nearest(const std::vector<double>& values, double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return sign | static_cast<uint16_t>(values.size() - 1);
  int64_t code = above - values.begin();
  if (*above != magnitude) {
    const double up = *above - magnitude, down = magnitude - values[code - 1];
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return sign | static_cast<uint16_t>(code);
}

bool is_nan(const std::vector<double>& values, uint16_t code) {
  return (code & 0x7fff) > static_cast<int>(values.size()) - 1;
}

double value_of(const std::vector<double>& values, uint16_t code) {
  const int magnitude = code & 0x7fff, infinity = static_cast<int>(values.size()) - 1;
  const double result = magnitude == infinity ? std::numeric_limits<double>::infinity()
                                              : values[std::min(magnitude, infinity)];
  return std::copysign(result, code & 0x8000 ? -1.0 : 1.0);
}

void check_float_to_16(Conversion conversion, bool to_card, const std::vector<double>& values,
                       const std::vector<float>& floats) {
  std::vector<uint16_t> first;
  for (Simd simd : forms()) {
    const auto codes = convert<uint16_t>(simd, conversion, to_card, floats);
    for (size_t i = 0; i < floats.size(); ++i) {
      if (std::isnan(floats[i])) {
        CHECK(is_nan(values, codes[i]));
      } else if (codes[i] != nearest(values, floats[i])) {
        std::printf("  form %d: %a\n", static_cast<int>(simd), floats[i]);
        CHECK_EQ(codes[i], nearest(values, floats[i]));
      }
    }
    if (first.empty()) first = codes;
    CHECK(codes == first);  // NaN payloads too
  }
}

std::vector<float> interesting_floats(const std::vector<double>& values) {
  std::vector<float> floats;
  for (size_t c = 0; c + 1 < values.size(); ++c) {
    const float middle = static_cast<float>((values[c] + values[c + 1]) / 2);
    for (float f : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY),
                    static_cast<float>(values[c])}) {
      floats.push_back(f);
      floats.push_back(-f);
    }
  }
  std::mt19937 random(99);
  for (int i = 0; i < 1'000'000; ++i) {
    floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  for (float f : {INFINITY, -INFINITY, 0.0f, -0.0f, FLT_MAX, -FLT_MAX}) floats.push_back(f);
  return floats;
}

void check_16_to_float(Conversion conversion, bool to_card, const std::vector<double>& values) {
  std::vector<uint32_t> first;
  for (Simd simd : forms()) {
    const auto patterns = convert<uint32_t>(simd, conversion, to_card, all_codes());
    for (int c = 0; c < 65536; ++c) {
      const float value = std::bit_cast<float>(patterns[c]);
      const uint16_t code = static_cast<uint16_t>(c);
      if (is_nan(values, code)) {
        CHECK(std::isnan(value));
      } else {
        CHECK_EQ(static_cast<double>(value), value_of(values, code));
        CHECK_EQ(std::signbit(value), code >= 0x8000);
      }
    }
    if (first.empty()) first = patterns;
    CHECK(patterns == first);
  }
}

}  // namespace

TEST(float32_becomes_the_nearest_half) {
  const auto floats = interesting_floats(half_values());
  check_float_to_16(Conversion::F32_HALF, true, half_values(), floats);
  check_float_to_16(Conversion::F16_F32, false, half_values(), floats);
}

TEST(float32_becomes_the_nearest_bfloat16) {
  check_float_to_16(Conversion::BF16_F32, false, bf16_values(), interesting_floats(bf16_values()));
}

TEST(every_half_and_bfloat16_becomes_its_float32) {
  check_16_to_float(Conversion::F32_HALF, false, half_values());
  check_16_to_float(Conversion::F16_F32, true, half_values());
  check_16_to_float(Conversion::BF16_F32, true, bf16_values());
}

TEST(every_bfloat16_becomes_the_nearest_half_and_back) {
  for (Simd simd : forms()) {
    const auto halves = convert<uint16_t>(simd, Conversion::BF16_HALF, true, all_codes());
    const auto back = convert<uint16_t>(simd, Conversion::BF16_HALF, false, all_codes());
    for (int c = 0; c < 65536; ++c) {
      const uint16_t code = static_cast<uint16_t>(c);
      if (is_nan(bf16_values(), code)) {
        CHECK(is_nan(half_values(), halves[c]));
      } else {
        CHECK_EQ(halves[c], nearest(half_values(), value_of(bf16_values(), code)));
      }
      if (is_nan(half_values(), code)) {
        CHECK(is_nan(bf16_values(), back[c]));
      } else {
        CHECK_EQ(back[c], nearest(bf16_values(), value_of(half_values(), code)));
      }
    }
  }
}

TEST(booleans_are_one_and_zero_and_everything_but_zero_is_true) {
  std::vector<uint8_t> bytes(256);
  for (int i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  for (Simd simd : forms()) {
    const auto dlf16 = convert<uint16_t>(simd, Conversion::BOOL_DLF16, true, bytes);
    const auto half = convert<uint16_t>(simd, Conversion::BOOL_HALF, true, bytes);
    for (int i = 0; i < 256; ++i) {
      CHECK_EQ(dlf16[i], i ? 0x3e00 : 0);
      CHECK_EQ(half[i], i ? 0x3c00 : 0);
    }
    for (Conversion conversion : {Conversion::BOOL_DLF16, Conversion::BOOL_HALF}) {
      const auto back = convert<uint8_t>(simd, conversion, false, all_codes());
      for (int c = 0; c < 65536; ++c) CHECK_EQ(back[c], c != 0 && c != 0x8000);
    }
  }
}

TEST(integers_are_widened_narrowed_and_watched) {
  for (Simd simd : forms()) {
    const std::vector<int64_t> longs = {0, -1, 5, INT32_MAX, INT32_MIN, -77};
    const std::vector<int32_t> ints = {0, -1, 5, INT32_MAX, INT32_MIN, -77};
    CHECK_EQ(convert<int32_t>(simd, Conversion::I64_I32, true, longs), ints);
    CHECK_EQ(convert<int64_t>(simd, Conversion::I64_I32, false, ints), longs);
    const std::vector<uint8_t> bytes = {0, 1, 127, 128, 255};
    const std::vector<uint32_t> words = {0, 1, 127, 128, 255};
    CHECK_EQ(convert<uint32_t>(simd, Conversion::U8_U32, true, bytes), words);
    CHECK_EQ(convert<uint8_t>(simd, Conversion::U8_U32, false, words), bytes);

    const ConvertRows rows = convert_table(simd).to_card[static_cast<int>(Conversion::I64_I32)];
    for (int64_t value : {int64_t{INT32_MAX} + 1, int64_t{INT32_MIN} - 1, INT64_MAX}) {
      std::vector<int64_t> from(40, 3);
      std::vector<int32_t> to(40);
      const auto run = [&] {
        return rows(reinterpret_cast<std::byte*>(to.data()), 40,
                    reinterpret_cast<const std::byte*>(from.data()), 80, 4, 10, Stores::CACHED);
      };
      CHECK(run());
      from[25] = value;
      CHECK(!run());
    }
  }
}

TEST(rows_of_every_length_and_pitch_are_copied_exactly) {
  std::mt19937 random(5);
  for (Simd simd : forms()) {
    for (int64_t bytes : {1, 2, 4, 8, 16}) {
      const ConvertRows rows = convert_table(simd).to_card[static_cast<int>(copy_of(bytes))];
      for (int64_t cols = 0; cols < 70; ++cols) {
        for (Stores stores : {Stores::CACHED, Stores::STREAM}) {
          const int64_t rows_count = 3, src_pitch = cols * bytes + 5;
          const int64_t dst_pitch = (cols * bytes + 127) / 64 * 64;
          std::vector<std::byte> src(rows_count * src_pitch), memory(rows_count * dst_pitch + 128);
          for (std::byte& b : src) b = static_cast<std::byte>(random());
          for (std::byte& b : memory) b = static_cast<std::byte>(random());
          const auto skew = reinterpret_cast<uintptr_t>(memory.data()) % 64;
          std::byte* dst = memory.data() + (64 - skew);  // aligned, so that streams are used
          std::vector<std::byte> expected = memory;
          for (int64_t r = 0; r < rows_count; ++r) {
            std::copy_n(src.begin() + r * src_pitch, cols * bytes,
                        expected.begin() + (dst - memory.data()) + r * dst_pitch);
          }
          CHECK(rows(dst, dst_pitch, src.data(), src_pitch, rows_count, cols, stores));
          convert_table(simd).fence();
          CHECK(memory == expected);
        }
      }
    }
  }
}

TEST(blocks_of_every_shape_are_transposed) {
  std::mt19937 random(6);
  for (Simd simd : forms()) {
    const ConvertTable& table = convert_table(simd);
    const std::pair<int64_t, TransposeBlock> kinds[] = {
        {1, table.transpose_1}, {2, table.transpose_2}, {4, table.transpose_4}};
    for (const auto& [bytes, transpose] : kinds) {
      for (int64_t rows : {1, 7, 8, 15, 16, 17, 33, 64}) {
        for (int64_t cols : {1, 3, 8, 13, 16, 64}) {
          const int64_t src_pitch = cols * bytes + 3, dst_pitch = rows * bytes + 7;
          std::vector<std::byte> src(rows * src_pitch), dst(cols * dst_pitch);
          for (std::byte& b : src) b = static_cast<std::byte>(random());
          for (std::byte& b : dst) b = static_cast<std::byte>(random());
          std::vector<std::byte> expected = dst;
          for (int64_t i = 0; i < rows; ++i) {
            for (int64_t j = 0; j < cols; ++j) {
              std::copy_n(src.begin() + i * src_pitch + j * bytes, bytes,
                          expected.begin() + j * dst_pitch + i * bytes);
            }
          }
          transpose(dst.data(), dst_pitch, src.data(), src_pitch, rows, cols);
          CHECK(dst == expected);
        }
      }
    }
  }
}

TEST(the_best_form_exists_and_missing_ones_are_refused) {
  CHECK(has_simd(best_simd()));
  CHECK(has_simd(Simd::PORTABLE));
  if (!has_simd(Simd::AVX2)) CHECK_THROWS(convert_table(Simd::AVX2), std::invalid_argument, "AVX2");
  if (!has_simd(Simd::AVX512)) {
    CHECK_THROWS(convert_table(Simd::AVX512), std::invalid_argument, "AVX-512");
  }
  CHECK(!has_simd(Simd::AVX512) || has_simd(Simd::AVX2));
  CHECK_THROWS(copy_of(3), std::invalid_argument, "3 bytes");
}
