// Every opcode of tile programs against a double reference, both forms of SIMD against each other,
// and the formats of tiles.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "numerics/dlfloat16.h"
#include "support/check.h"
#include "support/program_words.h"
#include "tile/tile.h"

using namespace words;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
float float_of(uint32_t value) { return std::bit_cast<float>(value); }

// ---- opcodes against double --------------------------------------------------------------------

struct FloatOp {
  int opcode;
  std::function<double(double, double, double)> reference;
  double ulps = 0.5;    // allowed error in units of the result
  double absolute = 0;  // or this, whichever is larger, in units of |input| * 2^-24
  float imm0 = 0, imm1 = 0;
};

double rounded_half_even(double a) { return std::nearbyint(a); }

std::vector<FloatOp> float_ops() {
  const auto nan_or = [](double a, double b, double result) {
    return std::isnan(a) || std::isnan(b) ? std::nan("") : result;
  };
  const double root_2 = std::sqrt(2.0);
  return {
      {ABS, [](double a, double, double) { return std::fabs(a); }},
      {NEG, [](double a, double, double) { return -a; }},
      {EXP, [](double a, double, double) { return std::exp(a); }, 1.5},
      {LOG, [](double a, double, double) { return std::log(a); }, 2},
      {SQRT, [](double a, double, double) { return std::sqrt(a); }},
      {RSQRT, [](double a, double, double) { return 1 / std::sqrt(a); }, 2},
      {RECIPROCAL, [](double a, double, double) { return 1 / a; }},
      {SIGMOID, [](double a, double, double) { return 1 / (1 + std::exp(-a)); }, 2.5},
      {TANH, [](double a, double, double) { return std::tanh(a); }, 2},
      {SILU, [](double a, double, double) { return a / (1 + std::exp(-a)); }, 2.5},
      {GELU_ERF, [=](double a, double, double) { return 0.5 * a * (1 + std::erf(a / root_2)); }, 3,
       2},
      {GELU_TANH,
       [](double a, double, double) {
         return 0.5 * a * (1 + std::tanh(std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a)));
       },
       3, 3},
      {RELU, [](double a, double, double) { return a < 0 ? 0 : a; }},
      {FLOOR, [](double a, double, double) { return std::floor(a); }},
      {CEIL, [](double a, double, double) { return std::ceil(a); }},
      {TRUNC, [](double a, double, double) { return std::trunc(a); }},
      {ROUND_EVEN, [](double a, double, double) { return rounded_half_even(a); }},
      {SIN, [](double a, double, double) { return std::sin(a); }, 2},
      {COS, [](double a, double, double) { return std::cos(a); }, 2},
      {ERF, [](double a, double, double) { return std::erf(a); }, 1.5},
      {LOG1P, [](double a, double, double) { return std::log1p(a); }, 2},
      {EXPM1, [](double a, double, double) { return std::expm1(a); }, 2},
      {ISNAN, [](double a, double, double) { return (std::isnan(a)) ? 1.0 : 0.0; }},
      {COPY, [](double a, double, double) { return a; }},
      {ADD, [](double a, double b, double) { return a + b; }},
      {SUB, [](double a, double b, double) { return a - b; }},
      {MUL, [](double a, double b, double) { return a * b; }},
      {DIV, [](double a, double b, double) { return a / b; }},
      {MAXIMUM, [=](double a, double b, double) { return nan_or(a, b, std::fmax(a, b)); }},
      {MINIMUM, [=](double a, double b, double) { return nan_or(a, b, std::fmin(a, b)); }},
      {EQ, [](double a, double b, double) { return (a == b) ? 1.0 : 0.0; }},
      {NE, [](double a, double b, double) { return (a != b) ? 1.0 : 0.0; }},
      {LT, [](double a, double b, double) { return (a < b) ? 1.0 : 0.0; }},
      {LE, [](double a, double b, double) { return (a <= b) ? 1.0 : 0.0; }},
      {GT, [](double a, double b, double) { return (a > b) ? 1.0 : 0.0; }},
      {GE, [](double a, double b, double) { return (a >= b) ? 1.0 : 0.0; }},
      {POW, [](double a, double b, double) { return std::pow(a, b); }, 1.5},
      {WHERE, [](double a, double b, double c) { return a != 0 ? b : c; }},
      {CLIP, [](double a, double, double) { return a < -1.5  ? -1.5
                                                   : a > 2.5 ? 2.5
                                                             : a; }, 0.5, 0,
       -1.5f, 2.5f},
      {SOFTPLUS,
       [](double a, double, double) {
         return a * 0.5 > 20 ? a : std::log1p(std::exp(a * 0.5)) / 0.5;
       },
       3.5, 0, 0.5f, 20.0f},
      {CONSTANT, [](double, double, double) { return 0.375; }, 0.5, 0, 0.375f},
      {ADD_CONSTANT, [](double a, double, double) { return a + 0.75; }, 0.5, 0, 0.75f},
      {MUL_CONSTANT, [](double a, double, double) { return a * -1.25; }, 0.5, 0, -1.25f},
      {CONSTANT_BITS, [](double, double, double) { return 3.5; }, 0.5, 0, 3.5f},
  };
}

// Magnitudes from tiny to large, small integers, neighbours of switch points, special values.
std::vector<float> interesting(int seed, size_t count) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-40, 40), unit(-1, 1), angle(-1e5, 1e5);
  std::vector<float> values = {
      0.0f,      -0.0f,  1.0f,    -1.0f,   kInf,       -kInf,      kNan,         0.5f,
      2.0f,      3.0f,   1.5f,    2.5f,    -2.5f,      0.625f,     0.927734375f, 88.7f,
      89.5f,     -87.5f, -103.9f, -104.5f, 1e-40f,     -1e-40f,    3e38f,        -3e38f,
      0x1p-126f, 1e5f,   1.1e5f,  1e20f,   1.5707963f, 3.1415927f, 6.2831855f,   20.0f};
  while (values.size() < count) {
    values.push_back(unit(random) * std::exp2(exponent(random)));
    values.push_back(unit(random) * 10);
    values.push_back(unit(random) * 100);
    values.push_back(angle(random));
    values.push_back(std::round(unit(random) * 8) / 2);
    values.push_back(1 + unit(random) * 1e-3f);
  }
  std::shuffle(values.begin(), values.end(), random);
  values.resize(count);
  return values;
}

double unit_of(double value) {  // of float32 near a value
  const double magnitude = std::max(std::fabs(value), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

std::vector<uint32_t> as_bits(const std::vector<float>& values) {
  std::vector<uint32_t> result;
  for (float value : values) result.push_back(bits_of(value));
  return result;
}

std::vector<uint32_t> apply(Simd simd, int opcode, const std::vector<uint32_t>& a,
                            const std::vector<uint32_t>& b, const std::vector<uint32_t>& c,
                            uint32_t imm0, uint32_t imm1, bool rounded = false) {
  std::vector<uint32_t> out(a.size());
  const Kernels& kernels = tile_table(simd).registers[opcode];
  const TileArguments arguments{
      out.data(), a.data(), b.data(), c.data(), imm0, imm1, static_cast<int64_t>(a.size())};
  if (rounded) {
    kernels.rounded(arguments);
  } else {
    kernels.plain(arguments);
  }
  return out;
}

bool same(uint32_t a, uint32_t b) {
  return a == b || (std::isnan(float_of(a)) && std::isnan(float_of(b)));
}

constexpr size_t kValues = 1 << 14;

TEST(every_float_opcode_is_as_exact_as_promised) {
  const auto a = interesting(1, kValues), b = interesting(2, kValues), c = interesting(3, kValues);
  for (const FloatOp& op : float_ops()) {
    const auto out = apply(best_simd(), op.opcode, as_bits(a), as_bits(b), as_bits(c),
                           bits_of(op.imm0), bits_of(op.imm1));
    double worst = 0;
    for (size_t i = 0; i < out.size(); i++) {
      const double exact = op.reference(a[i], b[i], c[i]);
      const double found = float_of(out[i]);
      const float nearest = static_cast<float>(exact);
      if (std::isnan(exact) || std::isnan(found)) {
        if (std::isnan(exact) != std::isnan(found)) {
          check::fail(__FILE__, __LINE__,
                      "opcode " + std::to_string(op.opcode) + " of " + check::show(a[i]) + ", " +
                          check::show(b[i]) + ": " + check::show(found));
        }
        continue;
      }
      if (nearest == found) continue;
      double allowed = op.ulps * unit_of(exact);
      const double input = std::fabs(a[i]);
      if (std::isfinite(input)) allowed = std::max(allowed, op.absolute * input * 0x1p-24);
      const double error = std::fabs(found - exact);
      // 1 + exp(-a) overflows where PyTorch's does; the result is then zero.
      if ((op.opcode == SIGMOID || op.opcode == SILU) && a[i] < -88.7f) allowed = 1e-36;
      worst = std::max(worst, error / unit_of(exact));
      if (!(error <= allowed)) {
        check::fail(__FILE__, __LINE__,
                    "opcode " + std::to_string(op.opcode) + " of " + check::show(a[i]) + ", " +
                        check::show(b[i]) + ": " + check::show(found) + " for " +
                        check::show(exact) + ", " + check::show(error / unit_of(exact)) + " ulp");
      }
    }
    if (getenv("SHOW_ULPS")) std::printf("opcode %d: %.2f ulp\n", op.opcode, worst);
  }
}

// Every DLFloat16 as input; the result, stored as one, must be the nearest or a hundredth of the
// way between two from being so.
TEST(short_opcodes_are_as_exact_as_16_bits_show) {
  const double root_2 = std::sqrt(2.0);
  const std::map<int, std::function<double(double)>> functions = {
      {SHORT_EXP, [](double a) { return std::exp(a); }},
      {SHORT_SIGMOID, [](double a) { return 1 / (1 + std::exp(-a)); }},
      {SHORT_TANH, [](double a) { return std::tanh(a); }},
      {SHORT_SILU, [](double a) { return a / (1 + std::exp(-a)); }},
      {SHORT_GELU_ERF, [=](double a) { return 0.5 * a * std::erfc(-a / root_2); }},
      {SHORT_GELU_TANH, [](double a) {
         return a / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a)));
       }}};
  std::vector<float> x;
  for (int code = 0; code < 0x10000; code++) {
    const uint16_t word = static_cast<uint16_t>(code);
    x.push_back(float_of(load_element(DataFormat::SEN169_FP16, Numerics::DLFLOAT16,
                                      reinterpret_cast<const std::byte*>(&word))));
  }
  const auto stored = [](float value) {
    uint16_t word = 0;
    auto* at = reinterpret_cast<std::byte*>(&word);
    store_element(DataFormat::SEN169_FP16, Numerics::DLFLOAT16, bits_of(value), at);
    return double{float_of(load_element(DataFormat::SEN169_FP16, Numerics::DLFLOAT16, at))};
  };
  for (const auto& [opcode, function] : functions) {
    for (Simd simd : forms()) {
      const auto out = apply(simd, opcode, as_bits(x), as_bits(x), as_bits(x), 0, 0);
      CHECK(out == apply(Simd::PORTABLE, opcode, as_bits(x), as_bits(x), as_bits(x), 0, 0));
      const auto rounded = apply(simd, opcode, as_bits(x), as_bits(x), as_bits(x), 0, 0, true);
      for (size_t i = 0; i < x.size(); i++) {
        const double exact = function(x[i]), found = stored(float_of(out[i]));
        CHECK(same(rounded[i], bits_of(static_cast<float>(found))));
        if (!std::isfinite(x[i])) {
          if (std::isnan(x[i])) CHECK(std::isnan(found));
          continue;
        }
        if (found == stored(static_cast<float>(exact))) continue;
        constexpr double kTiny = 4.6657078200951219e-10;  // the smallest number of the format
        const double half_unit = std::max(std::fabs(exact) * 0x1p-10, kTiny / 2);
        if (!(std::fabs(found - exact) <= half_unit * 1.01)) {
          check::fail(__FILE__, __LINE__,
                      "opcode " + std::to_string(opcode) + " of " + check::show(x[i]) + ": " +
                          check::show(found) + " for " + check::show(exact));
        }
      }
    }
  }
}

TEST(exponential_and_logarithms_are_exact_over_their_whole_range) {
  std::vector<float> x;
  for (int i = 0; i < (1 << 16); i++) x.push_back(float_of(0x30000000u + i * 0x2200u));
  for (int i = 0; i < (1 << 16); i++) x.push_back(-106.0f + i * (196.0f / (1 << 16)));
  const std::map<int, double (*)(double)> functions = {
      {EXP, std::exp},     {LOG, std::log},     {TANH, std::tanh}, {ERF, std::erf},
      {LOG1P, std::log1p}, {EXPM1, std::expm1}, {SIN, std::sin},   {COS, std::cos}};
  for (const auto& [opcode, function] : functions) {
    const auto out = apply(best_simd(), opcode, as_bits(x), as_bits(x), as_bits(x), 0, 0);
    double worst = 0;
    float worst_x = 0;
    for (size_t i = 0; i < x.size(); i++) {
      const double exact = function(x[i]);
      const float found = float_of(out[i]);
      if (static_cast<float>(exact) == found || (std::isnan(exact) && std::isnan(found))) continue;
      const double error = std::fabs(found - exact) / unit_of(exact);
      if (!(error <= worst)) {
        worst = error;
        worst_x = x[i];
      }
    }
    if (getenv("SHOW_ULPS")) std::printf("opcode %d: %.2f ulp at %g\n", opcode, worst, worst_x);
    if (!(worst <= 2)) {
      check::fail(__FILE__, __LINE__,
                  "opcode " + std::to_string(opcode) + " of " + check::show(worst_x) +
                      " is off by " + check::show(worst) + " ulp");
    }
  }
}

TEST(every_integer_opcode_wraps_and_compares) {
  std::mt19937 random(4);
  std::vector<uint32_t> a, b;
  const uint32_t special[] = {0, 1, 0xffffffff, 0x7fffffff, 0x80000000, 7};
  for (uint32_t x : special) {
    for (uint32_t y : special) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  while (a.size() < 1024) {
    a.push_back(random());
    b.push_back(random() % 2 ? random() : a.back());
  }
  using Function = std::function<uint32_t(int32_t, int32_t)>;
  const auto truth = [](bool value) { return bits_of(value ? 1.0f : 0.0f); };
  const std::map<int, Function> functions = {
      {INT_ABS, [](int32_t x, int32_t) { return x < 0 ? 0u - uint32_t(x) : uint32_t(x); }},
      {INT_NEG, [](int32_t x, int32_t) { return 0u - uint32_t(x); }},
      {INT_ADD, [](int32_t x, int32_t y) { return uint32_t(x) + uint32_t(y); }},
      {INT_SUB, [](int32_t x, int32_t y) { return uint32_t(x) - uint32_t(y); }},
      {INT_MUL, [](int32_t x, int32_t y) { return uint32_t(x) * uint32_t(y); }},
      {INT_MAX_OF, [](int32_t x, int32_t y) { return uint32_t(std::max(x, y)); }},
      {INT_MIN_OF, [](int32_t x, int32_t y) { return uint32_t(std::min(x, y)); }},
      {INT_EQ, [=](int32_t x, int32_t y) { return truth(x == y); }},
      {INT_NE, [=](int32_t x, int32_t y) { return truth(x != y); }},
      {INT_LT, [=](int32_t x, int32_t y) { return truth(x < y); }},
      {INT_LE, [=](int32_t x, int32_t y) { return truth(x <= y); }},
      {INT_GT, [=](int32_t x, int32_t y) { return truth(x > y); }},
      {INT_GE, [=](int32_t x, int32_t y) { return truth(x >= y); }},
      {INT_TO_FLOAT, [](int32_t x, int32_t) { return bits_of(static_cast<float>(x)); }}};
  for (Simd simd : forms()) {
    for (const auto& [opcode, function] : functions) {
      const auto out = apply(simd, opcode, a, b, a, 0, 0);
      for (size_t i = 0; i < a.size(); i++) {
        CHECK_EQ(out[i], function(int32_t(a[i]), int32_t(b[i])));
      }
    }
    const auto in = as_bits({1.9f, -1.9f, 0.0f, -0.5f, 2e9f, -2147483648.0f, 3e9f, kNan});
    std::vector<uint32_t> x(in);
    for (int i = 0; i < 3; i++) x.insert(x.end(), in.begin(), in.end());
    const auto out = apply(simd, FLOAT_TO_INT, x, x, x, 0, 0);
    const std::vector<int32_t> found(out.begin(), out.begin() + 8);
    CHECK_EQ(found,
             (std::vector<int32_t>{1, -1, 0, 0, 2000000000, INT32_MIN, INT32_MIN, INT32_MIN}));
  }
}

TEST(both_forms_of_simd_give_the_same_bits) {
  if (!has_simd(Simd::AVX2)) return;
  const auto a = as_bits(interesting(5, kValues)), b = as_bits(interesting(6, kValues)),
             c = as_bits(interesting(7, kValues));
  for (int opcode = 0; opcode < kNumOpcodes; opcode++) {
    if (inputs_of(opcode) < 0) continue;
    for (bool rounded : {false, true}) {
      if (rounded && tile_table(Simd::AVX2).registers[opcode].rounded == nullptr) continue;
      const uint32_t imm0 = bits_of(0.5f), imm1 = bits_of(20.0f);
      const auto x = apply(Simd::AVX2, opcode, a, b, c, imm0, imm1, rounded);
      const auto y = apply(Simd::PORTABLE, opcode, a, b, c, imm0, imm1, rounded);
      for (size_t i = 0; i < x.size(); i++) {
        if (!same(x[i], y[i])) {
          check::fail(__FILE__, __LINE__,
                      "opcode " + std::to_string(opcode) + " of " + check::show(float_of(a[i])) +
                          ": " + check::show(float_of(x[i])) +
                          " != " + check::show(float_of(y[i])));
        }
      }
    }
  }
}

TEST(a_value_for_a_whole_group_keeps_the_sign_of_zero) {
  const std::vector<uint32_t> a(64, bits_of(1.0f)), b = {bits_of(-0.0f), bits_of(0.0f)};
  for (Simd simd : forms()) {
    std::vector<uint32_t> out(64);
    tile_table(simd).by_group[MUL].plain(
        {out.data(), a.data(), b.data(), nullptr, 0, 0, 64, 32, 64, 1});
    CHECK_EQ(out[0], bits_of(-0.0f));
    CHECK_EQ(out[32], bits_of(0.0f));
  }
}

TEST(rounding_is_what_a_store_and_a_load_give) {
  std::vector<float> x = interesting(8, kValues);
  for (uint32_t code = 0; code < 0x8000; code += 7) {
    const float value = decode_dlfloat16(static_cast<uint16_t>(code));
    x.push_back(value);
    x.push_back(std::nextafter(value * 1.0009765625f, 0.0f));
    x.push_back(value * 1.0009765625f);
  }
  for (uint32_t bits :
       {0x2f803fffu, 0x2f804000u, 0x2f804001u, 0x30000000u, 0x30001fffu, 0x30002000u, 0x4fff5fffu,
        0x4fff6000u, 0x4fff7fffu, 0x4fff8000u, 0x7f800001u, 0x7fffffffu}) {
    x.push_back(float_of(bits));
    x.push_back(-float_of(bits));
  }
  while (x.size() % 32 != 0) x.push_back(0);
  const auto in = as_bits(x);
  for (Simd simd : forms()) {
    std::vector<uint32_t> out(in.size());
    tile_table(simd).round_dlfloat16(out.data(), in.data(), static_cast<int64_t>(in.size()));
    for (size_t i = 0; i < in.size(); i++) {
      CHECK_EQ(out[i], bits_of(decode_dlfloat16(encode_dlfloat16(x[i]))));
    }
    const auto sum = apply(simd, ADD, in, in, in, 0, 0);
    const auto rounded = apply(simd, ADD, in, in, in, 0, 0, true);
    for (size_t i = 0; i < in.size(); i++) {
      CHECK(same(rounded[i], bits_of(decode_dlfloat16(encode_dlfloat16(float_of(sum[i]))))));
    }
  }
}

TEST(tiles_are_encoded_and_decoded_as_the_format_says) {
  // Every code among ordinary ones, and blocks in which it is alone.
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); i++) codes[i] = static_cast<uint16_t>(i);
  std::vector<float> x = interesting(12, kValues);
  std::mt19937 random(13);
  for (uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xffffffffu, 0xff800001u}) {
    x.insert(x.begin(), float_of(nan));
  }
  while (x.size() < 4 * kValues) x.push_back(float_of(random()));
  // Where the format begins and ends, and one code further on each side.
  std::vector<float> limits;
  for (uint32_t edge : {0u, 0x2f800000u, 0x2f804000u, 0x30000000u, 0x30002000u, 0x30004000u,
                        0x4fff4000u, 0x4fff6000u, 0x4fff8000u, 0x7f800000u}) {
    for (int32_t by : {-0x4000, -1, 0, 1, 0x2000, 0x4000}) {
      limits.push_back(float_of((edge + by) & 0x7fffffff));
      limits.push_back(-limits.back());
    }
  }
  for (Simd simd : forms()) {
    const TileTable& table = tile_table(simd);
    std::vector<uint32_t> values(codes.size());
    table.decode_dlfloat16(values.data(), reinterpret_cast<const std::byte*>(codes.data()),
                           static_cast<int64_t>(codes.size()));
    for (size_t i = 0; i < codes.size(); i++) {
      CHECK_EQ(values[i], bits_of(decode_dlfloat16(codes[i])));
    }
    std::vector<uint16_t> back(codes.size());
    table.encode_dlfloat16(reinterpret_cast<std::byte*>(back.data()), values.data(),
                           static_cast<int64_t>(values.size()));
    CHECK(back == codes);
    for (size_t block = 0; block < x.size(); block += 32) {
      std::vector<float> few(32, 1.0f);
      for (int i = 0; i < 32; i += block % 64 == 0 ? 1 : 7) few[i] = x[block + i];
      const auto in = as_bits(few);
      uint16_t out[32];
      table.encode_dlfloat16(reinterpret_cast<std::byte*>(out), in.data(), 32);
      for (int i = 0; i < 32; i++) CHECK_EQ(out[i], encode_dlfloat16(few[i]));
    }
    for (float limit : limits) {
      for (int lane = 0; lane < 32; lane += 5) {
        std::vector<float> few(32, 1.0f);
        few[lane] = limit;
        uint16_t out[32];
        table.encode_dlfloat16(reinterpret_cast<std::byte*>(out), as_bits(few).data(), 32);
        CHECK_EQ(out[lane], encode_dlfloat16(limit));
        uint32_t rounded[32];
        table.round_dlfloat16(rounded, as_bits(few).data(), 32);
        CHECK(same(rounded[lane], bits_of(decode_dlfloat16(encode_dlfloat16(limit)))));
      }
    }
  }
}

TEST(widening_puts_fours_into_two_sticks_in_turn) {
  std::vector<uint32_t> in(128);
  for (int i = 0; i < 128; i++) in[i] = i;
  for (Simd simd : forms()) {
    const auto wide = apply(simd, WIDEN, in, in, in, 0, 0);
    for (int half = 0; half < 2; half++) {
      for (int column = 0; column < 64; column++) {
        const int place = column / 4 % 2 * 32 + column / 8 * 4 + column % 4;
        CHECK_EQ(wide[half * 64 + place], half * 64 + column);
      }
    }
    CHECK_EQ(apply(simd, NARROW, wide, wide, wide, 0, 0), in);
  }
}

TEST(fp8_elements_round_to_nearest_even_and_overflow_to_nan) {
  const auto round_trip = [](float value) {
    std::byte code{};
    store_element(DataFormat::SEN143_FP8, Numerics::DLFLOAT16, bits_of(value), &code);
    return float_of(load_element(DataFormat::SEN143_FP8, Numerics::DLFLOAT16, &code));
  };
  for (int code = 0; code < 256; code++) {
    const auto byte = static_cast<std::byte>(code);
    const float value = float_of(load_element(DataFormat::SEN143_FP8, Numerics::DLFLOAT16, &byte));
    if (std::isnan(value)) {
      CHECK_EQ(code & 0x7f, 0x7f);
      continue;
    }
    std::byte back{};
    store_element(DataFormat::SEN143_FP8, Numerics::DLFLOAT16, bits_of(value), &back);
    CHECK_EQ(std::to_integer<int>(back), code);
  }
  CHECK_EQ(round_trip(448), 448);
  CHECK_EQ(round_trip(464), 448);
  CHECK(std::isnan(round_trip(465)));
  CHECK(std::isnan(round_trip(kInf)));
  CHECK_EQ(round_trip(1.0625f), 1.0f);
  CHECK_EQ(round_trip(1.1875f), 1.25f);
  CHECK_EQ(round_trip(-0x1p-10f), 0.0f);
  CHECK_EQ(round_trip(0x1.8p-10f), 0x1p-9f);
}

}  // namespace
