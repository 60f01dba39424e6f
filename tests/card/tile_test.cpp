// Tile programs: every opcode against a double reference, both forms of SIMD against each other,
// and whole steps against a slow interpreter that goes point by point.
#include "tile.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "dlfloat16.h"
#include "program_words.h"

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

std::vector<Simd> forms() {
  std::vector<Simd> result = {Simd::PORTABLE};
  if (has_simd(Simd::AVX2)) result.push_back(Simd::AVX2);
  return result;
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

// ---- whole steps against a slow interpreter ----------------------------------------------------

// One lane at a time, one point at a time, in the words of the document. Data are small whole
// numbers, so that sums are exact in whatever order.
class SlowInterpreter {
 public:
  SlowInterpreter(Rig& rig, const TileSpec& spec) : rig_(rig), spec_(spec) {
    for (const OperandSpec& o : spec.operands) {
      operands_.push_back(
          {o.format,
           o.form,
           o.strides,
           o.sub_stride,
           o.limits.empty() ? Words(spec.cores(), -1) : o.limits,
           {o.space, o.argument, o.offsets.empty() ? Words(spec.cores(), 0) : o.offsets, {}}});
    }
  }

  void run() {
    std::vector<bool> done(spec_.cores());
    for (int core = 0; core < spec_.cores(); core++) {
      if (done[core]) continue;
      std::vector<int> team;
      for (int other = core; other < spec_.cores(); other++) {
        if (other == core || (!spec_.groups.empty() && spec_.groups[other] == spec_.groups[core])) {
          team.push_back(other);
          done[other] = true;
        }
      }
      for_points(core, 0, spec_.kept, [&](const Words& kept) { run_kept(team, kept); });
    }
  }

 private:
  using Lanes = std::vector<uint32_t>;

  template <class Work>
  void for_points(int core, int64_t first, int64_t count, Work work) {
    Words point(count, 0);
    const Words& extents = spec_.extents[core];
    for (int64_t d = 0; d < count; d++) {
      if (extents[first + d] == 0) return;
    }
    while (true) {
      work(point);
      int64_t d = count - 1;
      while (d >= 0 && ++point[d] == extents[first + d]) point[d--] = 0;
      if (d < 0) return;
    }
  }

  void run_kept(const std::vector<int>& team, const Words& kept) {
    if (spec_.reductions.empty()) return run_body(team[0], kept);
    std::vector<std::vector<std::vector<double>>> values(
        spec_.reductions.size(), std::vector<std::vector<double>>(spec_.lanes));
    for (int core : team) {
      for_points(core, spec_.kept, spec_.reduced, [&](const Words& reduced) {
        Words point = kept;
        append(point, reduced);
        run_body(core, point);
        for (size_t r = 0; r < values.size(); r++) {
          for (int l = 0; l < spec_.lanes; l++) {
            if (!valid(core, point, l)) continue;
            const int target = spec_.reduce_lanes ? 0 : l;
            values[r][target].push_back(float_of(registers_[spec_.reductions[r].source][l]));
          }
        }
      });
    }
    for (size_t r = 0; r < values.size(); r++) {
      for (int l = 0; l < spec_.lanes; l++) {
        finish(spec_.reductions[r], values[r][spec_.reduce_lanes ? 0 : l], l);
      }
    }
    run_list(spec_.epilogue, team[0], kept);
  }

  bool valid(int core, const Words& point, int lane) const {
    if (!spec_.reduce_lanes || spec_.tails.empty()) return true;
    const int64_t d = spec_.stick_dim;
    if (d >= 0 && point[d] != spec_.extents[core][d] - 1) return true;
    const auto [low, high] = spec_.tails[core];
    return (lane < 64 ? low >> lane : high >> (lane - 64)) & 1;
  }

  void finish(const TileSpec::Reduction& reduction, const std::vector<double>& values, int lane) {
    double sum = 0, squares = 0, product = 1, low = kInf, high = -kInf;
    for (double v : values) {
      sum += v;
      squares += v * v;
      product *= v;
      low = std::isnan(v) || std::isnan(low) ? kNan : std::min(low, v);
      high = std::isnan(v) || std::isnan(high) ? kNan : std::max(high, v);
    }
    const double n = static_cast<double>(values.size());
    const double results[] = {sum, high, low, product, sum / n};
    set(reduction.destination, lane, static_cast<float>(results[reduction.op]));
    if (reduction.op == 4) {
      set(reduction.destination + 1, lane, static_cast<float>(squares / n - (sum / n) * (sum / n)));
    }
  }

  void set(int64_t reg, int lane, float value) {
    auto& lanes = registers_[reg];
    lanes.resize(spec_.lanes);
    lanes[lane] = bits_of(value);
  }

  void run_body(int core, const Words& point) { run_list(spec_.body, core, point); }

  void run_list(const std::vector<InstructionSpec>& list, int core, const Words& point) {
    for (const InstructionSpec& in : list) {
      if (in.opcode == LOAD) {
        const auto [at, left] = place(in.a, core, point);
        auto& out = registers_[in.destination];
        out.assign(spec_.lanes, 0);
        load_group(operands_[in.a], at, left, static_cast<int>(spec_.lanes), rig_.numerics,
                   out.data());
      } else if (in.opcode == STORE) {
        const auto [at, left] = place(in.destination, core, point);
        store_group(operands_[in.destination], at, left, static_cast<int>(spec_.lanes),
                    rig_.numerics, registers_[in.a].data(),
                    in.b < 0 ? nullptr : registers_[in.b].data());
      } else {
        Lanes out(spec_.lanes);
        for (int l = 0; l < spec_.lanes; l++) out[l] = lane_of(in, l);
        registers_[in.destination] = out;
      }
    }
  }

  std::pair<std::byte*, int64_t> place(int64_t number, int core, const Words& point) {
    const TileOperand& operand = operands_[number];
    std::byte* at = operand.address.space == Space::LX ? rig_.lx.by_core()[core]
                                                       : rig_.host(operand.address.argument);
    at += operand.address.offsets[core];
    for (size_t d = 0; d < point.size(); d++) at += point[d] * operand.strides[d];
    const int64_t d = spec_.stick_dim;
    const int64_t group = d >= 0 && d < static_cast<int64_t>(point.size()) ? point[d] : 0;
    return {at, sticks_left(operand, core, group, static_cast<int>(spec_.lanes))};
  }

  uint32_t lane_of(const InstructionSpec& in, int lane) {
    const auto value = [&](int64_t reg) { return float_of(registers_[reg][lane]); };
    switch (in.opcode) {
      case ROUND: {
        std::byte element[4];
        const auto format = static_cast<DataFormat>(in.b);
        store_element(format, rig_.numerics, registers_[in.a][lane], element);
        return load_element(format, rig_.numerics, element);
      }
      case ADD:
        return bits_of(value(in.a) + value(in.b));
      case MUL:
        return bits_of(value(in.a) * value(in.b));
      case MAXIMUM:
        return bits_of(std::max(value(in.a), value(in.b)));
      case NEG:
        return bits_of(-value(in.a));
      case ADD_CONSTANT:
        return bits_of(value(in.a) + in.imm0);
      case MUL_CONSTANT:
        return bits_of(value(in.a) * in.imm0);
      case INT_TO_FLOAT:
        return bits_of(static_cast<float>(static_cast<int32_t>(registers_[in.a][lane])));
    }
    throw std::logic_error("opcode of the test");
  }

  Rig& rig_;
  const TileSpec& spec_;
  std::vector<TileOperand> operands_;
  std::map<int64_t, Lanes> registers_;
};

// Fills an operand's memory with small whole numbers of its format.
void fill(std::byte* at, size_t bytes, DataFormat format, std::mt19937& random, int most = 4) {
  const int64_t size = bytes_per_elem(format);
  const bool integer = format == DataFormat::IEEE_INT32 || format == DataFormat::SENINT8;
  for (size_t i = 0; i + size <= bytes; i += size) {
    const int value = static_cast<int>(random() % (2 * most + 1)) - most;
    store_element(format, Numerics::DLFLOAT16,
                  integer ? static_cast<uint32_t>(value) : bits_of(static_cast<float>(value)),
                  at + i);
  }
}

std::vector<std::byte> contents(Rig& rig, const std::vector<size_t>& sizes) {
  std::vector<std::byte> all;
  for (size_t i = 0; i < sizes.size(); i++)
    all.insert(all.end(), rig.host(i), rig.host(i) + sizes[i]);
  return all;
}
void restore(Rig& rig, const std::vector<size_t>& sizes, const std::vector<std::byte>& all) {
  size_t at = 0;
  for (size_t i = 0; i < sizes.size(); i++) {
    std::memcpy(rig.host(i), all.data() + at, sizes[i]);
    at += sizes[i];
  }
}

// Runs a step in every form of SIMD and with several numbers of threads; all bytes of all
// arguments must be those of the slow interpreter.
void check_step(Rig& rig, const TileSpec& spec, const std::vector<size_t>& sizes) {
  const auto before = contents(rig, sizes);
  SlowInterpreter(rig, spec).run();
  const auto expected = contents(rig, sizes);
  for (Simd simd : forms()) {
    for (int threads : {1, 2}) {
      rig.pool.resize(threads);
      restore(rig, sizes, before);
      rig.run_with(spec, simd);
      CHECK(contents(rig, sizes) == expected);
    }
  }
  restore(rig, sizes, before);
  rig.run({tile_step(spec)});  // as machine code, where the processor has AVX-512
  CHECK(contents(rig, sizes) == expected);
}

// Random steps. Each operand has memory of its own with its dimensions in a random order; loads
// may be broadcast along some dimensions.
struct RandomStep {
  Rig rig;
  TileSpec spec;
  std::vector<size_t> sizes;
  std::mt19937 random;

  explicit RandomStep(int seed) : random(seed) {}

  int64_t pick(int64_t low, int64_t high) { return low + random() % (high - low + 1); }

  int add_operand(DataFormat format, OperandForm form, bool kept_only, bool may_broadcast,
                  bool limited) {
    OperandSpec operand{.format = format, .form = form};
    operand.argument = static_cast<int>(spec.operands.size());
    const int64_t dims = spec.kept + spec.reduced;
    operand.strides.assign(dims, 0);
    const int64_t sticks = form == OperandForm::VECTOR ? spec.lanes / elems_per_stick(format) : 1;
    std::vector<int64_t> order;  // -1: the sticks of a group
    for (int64_t d = 0; d < (kept_only ? spec.kept : dims); d++) {
      if (!may_broadcast || pick(0, 3) > 0) order.push_back(d);
    }
    order.push_back(-1);
    std::shuffle(order.begin(), order.end(), random);
    int64_t at = 128;
    for (int64_t d : order) {
      int64_t extent = sticks;
      if (d >= 0) {
        extent = 1;
        for (const Words& core : spec.extents) extent = std::max(extent, core[d]);
      }
      (d < 0 ? operand.sub_stride : operand.strides[d]) = at;
      at *= extent;
    }
    for (int core = 0; core < spec.cores(); core++) {
      operand.offsets.push_back(core * at);
      if (limited && spec.stick_dim >= 0) {
        const int64_t all = spec.extents[core][spec.stick_dim] * sticks;
        operand.limits.push_back(pick(std::max<int64_t>(0, all - 3), all));
      }
    }
    sizes.push_back(at * spec.cores());
    std::byte* memory = rig.add_argument(sizes.back());
    fill(memory, sizes.back(), format, random);
    spec.operands.push_back(operand);
    return operand.argument;
  }

  void make(bool reduces) {
    spec.lanes = 64 << pick(0, 1) >> pick(0, 1);
    spec.kept = pick(0, 3);
    spec.reduced = reduces ? pick(0, 2) : 0;
    const int64_t dims = spec.kept + spec.reduced;
    spec.stick_dim = dims == 0 ? -1 : pick(-1, dims - 1);
    const int64_t cores = pick(1, 4);
    const bool grouped = reduces && pick(0, 1);
    for (int64_t core = 0; core < cores; core++) {
      Words extents;
      for (int64_t d = 0; d < dims; d++) {
        const bool shared = grouped && core > 0 && d < spec.kept;
        extents.push_back(shared ? spec.extents[0][d] : pick(1, 5));
      }
      spec.extents.push_back(extents);
      if (grouped) spec.groups.push_back(pick(5, 6));
    }
    std::vector<DataFormat> formats = {DataFormat::IEEE_FP32};
    if (spec.lanes >= 64) {
      formats.push_back(DataFormat::SEN169_FP16);
      formats.push_back(DataFormat::BFLOAT16);
      formats.push_back(DataFormat::IEEE_FP16);
    }
    if (spec.lanes >= 128) formats.push_back(DataFormat::SEN143_FP8);
    const auto format = [&] { return formats[random() % formats.size()]; };
    const auto vector = OperandForm::VECTOR;
    add_operand(format(), vector, false, true, pick(0, 1));
    add_operand(format(), pick(0, 2) ? vector : OperandForm::SPLAT, false, true, false);
    const int out = add_operand(format(), vector, reduces, false, pick(0, 1));
    spec.body = {{LOAD, 3, 0}, {LOAD, 4, 1}, {ADD, 5, 3, 4}};
    if (pick(0, 1)) spec.body.push_back({ROUND, 5, 5, int(DataFormat::SEN169_FP16)});
    if (!reduces) {
      spec.body.push_back({MUL_CONSTANT, 5, 5, -1, -1, 0.5f});
      spec.body.push_back({ROUND, 6, 5, int(format())});
      spec.body.push_back({STORE, out, 6});
      return;
    }
    spec.reduce_lanes = pick(0, 1);
    const bool tails = spec.reduce_lanes && pick(0, 1);
    if (tails) {
      for (int64_t core = 0; core < cores; core++)
        spec.tails.push_back({random() | 1ull, random()});
    }
    const int64_t op = pick(0, 2);
    spec.reductions = {{0, 5, 10}, {op, 4, 11}};
    spec.epilogue = {{MUL_CONSTANT, 12, 10, -1, -1, 0.25f}, {ADD, 12, 12, 11}, {STORE, out, 12}};
    if (pick(0, 1)) {
      const int splat = add_operand(format(), OperandForm::SPLAT_STORE, true, false, false);
      spec.epilogue.push_back({STORE, splat, 11});
    }
    if (pick(0, 1)) {  // the body may store too
      const int other = add_operand(format(), vector, false, false, false);
      spec.body.push_back({STORE, other, 5});
    }
  }
};

TEST(random_chains_equal_the_slow_interpreter) {
  for (int seed = 0; seed < 150; seed++) {
    RandomStep step(seed);
    step.make(false);
    const int before = check::failures;
    check_step(step.rig, step.spec, step.sizes);
    if (check::failures != before) std::printf("    seed %d\n", seed);
  }
}

TEST(random_reductions_equal_the_slow_interpreter) {
  for (int seed = 1000; seed < 1300; seed++) {
    RandomStep step(seed);
    step.make(true);
    const int before = check::failures;
    check_step(step.rig, step.spec, step.sizes);
    if (check::failures != before) std::printf("    seed %d\n", seed);
  }
}

TEST(large_steps_are_divided_among_threads_without_changing_a_bit) {
  Rig rig;
  std::mt19937 random(9);
  // 3 columns of sticks, 700 rows: the output has its rows together, one input its sticks.
  const int64_t rows = 700, columns = 3;
  std::vector<size_t> sizes = {size_t(rows * columns * 128), size_t(rows * columns * 128), 128 * 3,
                               size_t(rows * columns * 128)};
  for (size_t size : sizes) fill(rig.add_argument(size), size, DataFormat::SEN169_FP16, random);
  TileSpec spec{.lanes = 64, .kept = 2, .stick_dim = 1, .extents = {{rows, columns}}};
  spec.operands = {{.strides = {128, rows * 128}, .argument = 0},
                   {.strides = {128 * columns, 128}, .argument = 1},
                   {.strides = {0, 128}, .argument = 2},
                   {.strides = {128, rows * 128}, .argument = 3}};
  spec.body = {{LOAD, 0, 0},     {LOAD, 1, 1},   {LOAD, 2, 2}, {ADD, 0, 0, 1},
               {ROUND, 0, 0, 0}, {MUL, 0, 0, 2}, {STORE, 3, 0}};
  check_step(rig, spec, sizes);
}

TEST(an_odd_number_of_float32_sticks_under_groups_of_64_lanes) {
  // 3 sticks of float32 are one and a half groups; the DLFloat16 result has 2 sticks.
  Rig rig;
  auto* in = reinterpret_cast<float*>(rig.add_argument(3 * 128));
  rig.add_argument(2 * 128);
  auto* back = reinterpret_cast<float*>(rig.add_argument(4 * 128));
  for (int i = 0; i < 96; i++) in[i] = static_cast<float>(i + 1);
  for (int i = 0; i < 128; i++) back[i] = -7;
  TileSpec spec{.lanes = 64, .kept = 1, .stick_dim = 0, .extents = {{2}}};
  spec.operands = {
      {.format = DataFormat::IEEE_FP32, .strides = {256}, .limits = {3}, .argument = 0},
      {.format = DataFormat::SEN169_FP16, .strides = {128}, .argument = 1},
      {.format = DataFormat::IEEE_FP32, .strides = {256}, .limits = {3}, .argument = 2}};
  spec.body = {{LOAD, 0, 0}, {STORE, 1, 0}, {STORE, 2, 0}};
  rig.run({tile_step(spec)});
  for (int i = 0; i < 128; i++) {
    const float expected = i < 96 ? static_cast<float>(i + 1) : 0;
    CHECK_EQ(decode_dlfloat16(rig.data<uint16_t>(1)[i]), expected);
    CHECK_EQ(back[i], i < 96 ? expected : -7);
  }
}

TEST(a_softmax_of_masked_rows_in_one_program) {
  Rig rig;
  const int64_t rows = 20, sticks = 3, columns = 150;
  auto* x = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
  rig.add_argument(rows * 128);
  rig.add_argument(rows * 128);
  auto* out = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
  std::mt19937 random(10);
  std::normal_distribution<float> normal;
  const auto at = [&](int64_t row, int64_t column) {
    return (column / 64 * rows + row) * 64 + column % 64;
  };
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < sticks * 64; c++) {
      x[at(r, c)] = encode_dlfloat16(c < columns ? normal(random) : 1000.0f);
    }
  }
  TileSpec max{.lanes = 64, .kept = 1, .reduced = 1, .stick_dim = 1, .extents = {{rows, sticks}}};
  max.tails = {{(1ull << (columns - 128)) - 1, 0}};
  max.operands = {{.strides = {128, rows * 128}, .argument = 0},
                  {.form = OperandForm::SPLAT_STORE, .strides = {128, 0}, .argument = 1}};
  max.body = {{LOAD, 0, 0}};
  max.reduce_lanes = true;
  max.reductions = {{1, 0, 1}};
  max.epilogue = {{STORE, 1, 1}};
  TileSpec sum = max;
  sum.operands.push_back({.form = OperandForm::SPLAT, .strides = {128, 0}, .argument = 1});
  sum.operands[1].argument = 2;
  sum.body = {{LOAD, 0, 0}, {LOAD, 1, 2}, {SUB, 0, 0, 1}, {EXP, 0, 0}};
  sum.reductions = {{0, 0, 1}};
  TileSpec divide{.lanes = 64, .kept = 2, .stick_dim = 1, .extents = {{rows, sticks}}};
  divide.operands = {max.operands[0],
                     {.form = OperandForm::SPLAT, .strides = {128, 0}, .argument = 1},
                     {.form = OperandForm::SPLAT, .strides = {128, 0}, .argument = 2},
                     {.strides = {128, rows * 128}, .argument = 3}};
  divide.body = {{LOAD, 0, 0}, {LOAD, 1, 1},   {LOAD, 2, 2}, {SUB, 0, 0, 1},
                 {EXP, 0, 0},  {DIV, 0, 0, 2}, {STORE, 3, 0}};
  rig.run({tile_step(max), tile_step(sum), tile_step(divide)});
  for (int64_t r = 0; r < rows; r++) {
    double top = -kInf, total = 0;
    for (int64_t c = 0; c < columns; c++) {
      top = std::max<double>(top, decode_dlfloat16(x[at(r, c)]));
    }
    for (int64_t c = 0; c < columns; c++) total += std::exp(decode_dlfloat16(x[at(r, c)]) - top);
    for (int64_t c = 0; c < columns; c++) {
      const double exact = std::exp(decode_dlfloat16(x[at(r, c)]) - top) / total;
      CHECK(std::fabs(decode_dlfloat16(out[at(r, c)]) - exact) <= exact * 0x1p-8);
    }
  }
}

// Softmax and the moments of its results, with and without the lanes, as separate steps and as the
// phases of one.
TEST(phases_have_the_bits_of_separate_steps) {
  struct Shape {
    int64_t rows, sticks, columns;
    bool over_lanes;
  };
  for (const Shape& shape :
       {Shape{20, 1, 50, true}, Shape{300, 3, 192, true}, Shape{5, 40, 2500, true},
        Shape{1, 9, 513, true}, Shape{6, 30, 1920, false}, Shape{700, 2, 128, false}}) {
    Rig rig;
    const auto [rows, sticks, columns, over_lanes] = shape;
    auto* x = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
    for (int i = 0; i < 3; i++) rig.add_argument(rows * 128);
    for (int i = 0; i < 4; i++) rig.add_argument(rows * sticks * 128);
    rig.add_argument(rows * 128);
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * sticks * 64; i++) x[i] = encode_dlfloat16(normal(random));
    const int64_t rest = columns - (sticks - 1) * 64;
    const auto result = over_lanes ? OperandForm::SPLAT_STORE : OperandForm::VECTOR;
    const auto spread = over_lanes ? OperandForm::SPLAT : OperandForm::VECTOR;
    const Words by_row = {128, 0}, full = {128, rows * 128};
    TileSpec max{.lanes = 64, .kept = 1, .reduced = 1, .stick_dim = over_lanes ? 1 : -1};
    max.extents = {{rows, sticks}};
    if (rest < 64) max.tails = {{(1ull << rest) - 1, 0}};
    max.operands = {{.strides = full, .argument = 0},
                    {.form = result, .strides = by_row, .argument = 1}};
    max.body = {{LOAD, 0, 0}};
    max.reduce_lanes = over_lanes;
    max.reductions = {{1, 0, 1}};
    max.epilogue = {{STORE, 1, 1}};
    TileSpec sum = max;
    sum.operands = {{.strides = full, .argument = 0},
                    {.form = result, .strides = by_row, .argument = 2},
                    {.form = spread, .strides = by_row, .argument = 1},
                    {.strides = full, .argument = 4}};
    sum.body = {{LOAD, 0, 0},      {LOAD, 1, 2},  {SUB, 0, 0, 1},
                {SHORT_EXP, 0, 0}, {STORE, 3, 0}, {LOAD, 0, 3}};
    sum.reductions = {{0, 0, 1}};
    TileSpec divide{.lanes = 64, .kept = 2, .stick_dim = max.stick_dim};
    divide.extents = {{rows, sticks}};
    divide.operands = {{.strides = full, .argument = 4},
                       {.form = spread, .strides = by_row, .argument = 2},
                       {.strides = full, .argument = 5}};
    divide.body = {{LOAD, 0, 0}, {LOAD, 1, 1}, {DIV, 0, 0, 1}, {STORE, 2, 0}};
    rig.run({tile_step(max), tile_step(sum), tile_step(divide)});

    TileSpec all = max;
    all.operands.push_back({.strides = full, .argument = 6});
    all.operands.push_back({.form = result, .strides = by_row, .argument = 3});
    all.operands.push_back({.strides = full, .argument = 7});
    const InstructionSpec round{ROUND, 2, 2, static_cast<int64_t>(DataFormat::SEN169_FP16)};
    all.epilogue = {{STORE, 1, 1}};
    all.further = {{{{SPREAD, 1, 1}, {SUB, 2, 0, 1}, {SHORT_EXP, 2, 2}, round, {STORE, 2, 2}},
                    {{0, 2, 4}},
                    {{ROUND, 4, 4, static_cast<int64_t>(DataFormat::SEN169_FP16)}, {STORE, 3, 4}}},
                   {{{SPREAD, 3, 4}, {DIV, 3, 2, 3}, {STORE, 4, 3}}}};
    rig.run({tile_step(all)});
    const auto bytes = [&](int argument, int64_t count) {
      return std::vector<std::byte>(rig.host(argument), rig.host(argument) + count);
    };
    CHECK(bytes(4, rows * sticks * 128) == bytes(6, rows * sticks * 128));
    CHECK(bytes(2, rows * 128) == bytes(3, rows * 128));
    CHECK(bytes(5, rows * sticks * 128) == bytes(7, rows * sticks * 128));
  }
}

// Rows of 4 sticks, divided 2 x 2: sticks [stick][row][64].
TEST(cores_whose_shares_follow_each_other_are_walked_as_one) {
  const int64_t rows = 6, sticks = 4;
  const auto spec_of = [&](std::vector<Words> extents, Words offsets) {
    TileSpec spec{.lanes = 64, .kept = 2, .stick_dim = 1, .extents = std::move(extents)};
    for (int argument = 0; argument < 2; argument++) {
      spec.operands.push_back(
          {.strides = {128, rows * 128}, .argument = argument, .offsets = offsets});
    }
    spec.body = {{LOAD, 0, 0}, {NEG, 0, 0}, {STORE, 1, 0}};
    return spec;
  };
  const Words half = {rows / 2, sticks / 2};
  const int64_t down = rows / 2 * 128, right = sticks / 2 * rows * 128;
  const auto teams = [](const TileSpec& spec) {
    const auto words = program_of({tile_step(spec)});
    return std::get<TileStep>(parse_program({kProgramSegment, words})->steps[0].what).teams.size();
  };
  const TileSpec divided = spec_of({half, half, half, half}, {0, down, right, right + down});
  CHECK(teams(divided) == 1);
  // The third one begins a row further down: then so many, and no more, are one.
  const TileSpec shifted = spec_of({half, half, half, half}, {0, down, right, right + down + 128});
  CHECK(teams(shifted) == 4);
  CHECK(teams(spec_of({half, half}, {0, right + down})) == 2);

  Rig rig;
  auto* x = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
  auto* out = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
  for (int i = 0; i < rows * sticks * 64; i++) x[i] = encode_dlfloat16(static_cast<float>(i % 500));
  rig.run({tile_step(divided)});
  for (int i = 0; i < rows * sticks * 64; i++) CHECK(decode_dlfloat16(out[i]) == -(i % 500));
}

TEST(maximum_and_minimum_hand_nan_on_also_over_lanes_and_cores) {
  for (int64_t op : {1, 2}) {
    for (int where = 0; where < 4; where++) {
      Rig rig;
      auto* in = reinterpret_cast<float*>(rig.add_argument(2 * 4 * 128));
      auto* out = reinterpret_cast<float*>(rig.add_argument(128));
      for (int i = 0; i < 2 * 4 * 32; i++) in[i] = static_cast<float>(i % 7);
      in[where * 61 + 5] = kNan;
      TileSpec spec{.lanes = 32, .reduced = 1, .stick_dim = 0, .extents = {{4}, {4}}};
      spec.operands = {{.format = DataFormat::IEEE_FP32, .strides = {128}, .offsets = {0, 512}},
                       {.format = DataFormat::IEEE_FP32, .strides = {0}, .argument = 1}};
      spec.body = {{LOAD, 0, 0}};
      spec.reduce_lanes = true;
      spec.groups = {0, 0};
      spec.reductions = {{op, 0, 1}};
      spec.epilogue = {{STORE, 1, 1}};
      rig.run({tile_step(spec)});
      for (int i = 0; i < 32; i++) CHECK(std::isnan(out[i]));
    }
  }
}

TEST(exx2_gives_mean_and_variance_of_the_valid_lanes_of_all_cores) {
  for (DataFormat format : {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32}) {
    Rig rig;
    // Two cores with 2 and 1 sticks of each of 11 rows; the last stick has 10 lanes.
    const int64_t rows = 11, sticks = 3, columns = 2 * 64 + 10;
    auto* x = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
    rig.add_argument(rows * 128);
    auto* norm = reinterpret_cast<uint16_t*>(rig.add_argument(rows * 128));
    std::mt19937 random(11);
    std::normal_distribution<float> normal(100, 1);  // a mean far from zero
    for (int64_t i = 0; i < rows * sticks * 64; i++) x[i] = encode_dlfloat16(normal(random));
    TileSpec spec{
        .lanes = 64, .kept = 1, .reduced = 1, .stick_dim = 1, .extents = {{rows, 2}, {rows, 1}}};
    spec.tails = {{~0ull, 0}, {(1ull << 10) - 1, 0}};
    spec.operands = {
        {.strides = {128, rows * 128}, .argument = 0, .offsets = {0, 2 * rows * 128}},
        {.format = format, .form = OperandForm::EXX2_STORE, .strides = {128, 0}, .argument = 1}};
    spec.body = {{LOAD, 0, 0}};
    spec.reduce_lanes = true;
    spec.groups = {3, 3};
    spec.reductions = {{4, 0, 5}};
    spec.epilogue = {{STORE, 1, 5, 6}};
    TileSpec read{.lanes = 64, .kept = 1, .extents = {{rows}}};
    read.operands = {
        {.format = format, .form = OperandForm::EXX2_MEAN, .strides = {128}, .argument = 1},
        {.format = format, .form = OperandForm::EXX2_VARIANCE, .strides = {128}, .argument = 1},
        {.strides = {128}, .argument = 2}};
    read.body = {{LOAD, 0, 0},
                 {LOAD, 1, 1},
                 {MUL_CONSTANT, 1, 1, -1, -1, 64.0f},
                 {ADD, 0, 0, 1},
                 {STORE, 2, 0}};
    rig.run({tile_step(spec), tile_step(read)});
    for (int64_t r = 0; r < rows; r++) {
      double sum = 0, squares = 0;
      for (int64_t c = 0; c < columns; c++) {
        const double v = decode_dlfloat16(x[(c / 64 * rows + r) * 64 + c % 64]);
        sum += v;
        squares += v * v;
      }
      const float mean = static_cast<float>(sum / columns);
      const float variance =
          static_cast<float>(squares / columns - (sum / columns) * (sum / columns));
      const std::byte* stick = rig.host(1) + r * 128;
      const bool wide = format == DataFormat::IEEE_FP32;
      float found[2];
      std::memcpy(found, stick + (wide ? 0 : 8), 8);
      CHECK(std::fabs(found[0] - mean) <= 1e-6f * mean);
      CHECK(std::fabs(found[1] - variance) <= 1e-5f * variance);
      if (!wide) {
        uint16_t code;
        std::memcpy(&code, stick, 2);
        CHECK_EQ(code, encode_dlfloat16(found[0]));
      }
      for (int lane : {0, 63}) {
        CHECK_EQ(norm[r * 64 + lane], encode_dlfloat16(found[0] + found[1] * 64.0f));
      }
    }
  }
}

TEST(integers_and_bytes_travel_through_registers) {
  Rig rig;
  auto* in = reinterpret_cast<int8_t*>(rig.add_argument(128));
  auto* wide = reinterpret_cast<int32_t*>(rig.add_argument(4 * 128));
  auto* halves = reinterpret_cast<uint16_t*>(rig.add_argument(2 * 128));
  auto* again = reinterpret_cast<int8_t*>(rig.add_argument(128));
  for (int i = 0; i < 128; i++) in[i] = static_cast<int8_t>(2 * i);
  TileSpec spec{.lanes = 128, .extents = {{}}};
  spec.operands = {{.format = DataFormat::SENINT8, .argument = 0},
                   {.format = DataFormat::IEEE_INT32, .argument = 1},
                   {.format = DataFormat::SEN169_FP16, .argument = 2},
                   {.format = DataFormat::SENINT8, .argument = 3}};
  spec.body = {{LOAD, 0, 0},  {INT_ADD, 1, 0, 0},   {STORE, 1, 1}, {INT_TO_FLOAT, 2, 0},
               {STORE, 2, 2}, {FLOAT_TO_INT, 3, 2}, {STORE, 3, 3}};
  rig.run({tile_step(spec)});
  for (int i = 0; i < 128; i++) {
    CHECK_EQ(wide[i], 2 * in[i]);
    CHECK_EQ(decode_dlfloat16(halves[i]), static_cast<float>(in[i]));
    CHECK_EQ(again[i], in[i]);
  }
}

TEST(ieee_numerics_store_halves_and_round_to_them) {
  Rig rig;
  rig.numerics = Numerics::IEEE;
  auto* in = reinterpret_cast<float*>(rig.add_argument(2 * 128));
  auto* out = reinterpret_cast<uint16_t*>(rig.add_argument(128));
  auto* rounded = reinterpret_cast<float*>(rig.add_argument(2 * 128));
  for (int i = 0; i < 64; i++) in[i] = 1.0f + static_cast<float>(i) * 0x1p-11f;
  TileSpec spec{.lanes = 64, .extents = {{}}};
  spec.operands = {{.format = DataFormat::IEEE_FP32, .argument = 0},
                   {.argument = 1},
                   {.format = DataFormat::IEEE_FP32, .argument = 2}};
  spec.body = {{LOAD, 0, 0},
               {STORE, 1, 0},
               {MUL_CONSTANT, 1, 0, -1, -1, 1.0f},
               {ROUND, 1, 1, 0},
               {STORE, 2, 1}};
  rig.run({tile_step(spec)});
  for (int i = 0; i < 64; i++) {
    const int units = i % 2 == 0 ? i / 2 : (i / 2 + (i / 2) % 2);  // of 2^-10, ties to even
    CHECK_EQ(out[i], 0x3c00 + units);
    CHECK_EQ(rounded[i], 1.0f + static_cast<float>(units) * 0x1p-10f);
  }
}

// ---- malformed steps ---------------------------------------------------------------------------

TileSpec small_spec() {
  TileSpec spec{.lanes = 64, .kept = 1, .reduced = 1, .stick_dim = 1, .extents = {{2, 2}, {2, 2}}};
  spec.operands = {{.strides = {128, 256}}, {.strides = {128, 0}}};
  spec.body = {{LOAD, 0, 0}};
  spec.reductions = {{0, 0, 1}};
  spec.epilogue = {{STORE, 1, 1}};
  return spec;
}

void parse(const TileSpec& spec) {
  parse_program({kProgramSegment, program_of({tile_step(spec)})});
}

TEST(malformed_tile_programs_are_refused_with_the_reason) {
  parse(small_spec());
  const auto refused = [](const char* part, auto change) {
    TileSpec spec = small_spec();
    change(spec);
    CHECK_THROWS(parse(spec), ProgramError, part);
  };
  refused("the number of lanes is 16", [](TileSpec& s) { s.lanes = 16; });
  refused("96 lanes", [](TileSpec& s) { s.lanes = 96; });
  refused("the stick dim is 2", [](TileSpec& s) { s.stick_dim = 2; });
  refused("an extent is -1", [](TileSpec& s) { s.extents[1][0] = -1; });
  refused("more elements than the 32 lanes", [](TileSpec& s) { s.lanes = 32; });
  refused("cannot have the format SENINT4",
          [](TileSpec& s) { s.operands[0].format = DataFormat::SENINT4; });
  refused("a limit is -2", [](TileSpec& s) { s.operands[0].limits = {0, -2}; });
  refused("the space of an address is 4",
          [](TileSpec& s) { s.operands[0].space = static_cast<Space>(4); });
  refused("the form of an operand is 6",
          [](TileSpec& s) { s.operands[0].form = static_cast<OperandForm>(6); });
  refused("no opcode 53", [](TileSpec& s) { s.body.push_back({53, 0, 0, 0}); });
  refused("no opcode -1", [](TileSpec& s) { s.body.push_back({-1, 0, 0, 0}); });
  refused("no register 32", [](TileSpec& s) { s.body.push_back({ABS, 32, 0}); });
  refused("no register -1", [](TileSpec& s) { s.body.push_back({ADD, 0, 0}); });
  refused("reads register 7 before", [](TileSpec& s) { s.body.push_back({ABS, 0, 7}); });
  refused("reads register 0 before", [](TileSpec& s) { s.epilogue.push_back({ABS, 2, 0}); });
  refused("reduces register 9 before", [](TileSpec& s) { s.reductions[0].source = 9; });
  refused("no operand 2", [](TileSpec& s) { s.body.push_back({LOAD, 0, 2}); });
  refused("cannot be stored", [](TileSpec& s) { s.operands[1].form = OperandForm::SPLAT; });
  refused("cannot be loaded", [](TileSpec& s) { s.operands[0].form = OperandForm::SPLAT_STORE; });
  refused("it rounds to format 2", [](TileSpec& s) { s.body.push_back({ROUND, 0, 0, 2}); });
  refused("the operation of a reduction is 5", [](TileSpec& s) { s.reductions[0].op = 5; });
  refused("the destination of a reduction is 31",
          [](TileSpec& s) { s.reductions[0] = {4, 0, 31}; });
  refused("different kept extents", [](TileSpec& s) {
    s.groups = {1, 1};
    s.extents[1][0] = 3;
  });
  refused("reduces nothing", [](TileSpec& s) { s.reductions.clear(); });
  refused("no EXX2 stick", [](TileSpec& s) {
    s.lanes = 128;
    s.operands[0].format = DataFormat::SENINT8;
    s.operands[0].form = OperandForm::EXX2_MEAN;
  });
  refused("widen and narrow need", [](TileSpec& s) {
    s.lanes = 32;
    for (auto& o : s.operands) o.format = DataFormat::IEEE_FP32;
    s.body.push_back({WIDEN, 0, 0});
  });
}

}  // namespace
