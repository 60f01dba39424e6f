// Machine code of tile programs: every instruction has the bits of the kernels, DLFloat16 those of
// its definition, and whole chains in all three forms those of the interpreter.
#include "jit/specialisations.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "jit/machine_code.h"
#include "jit/record.h"
#include "numerics/dlfloat16.h"
#include "support/check.h"
#include "support/program_words.h"

using namespace words;

namespace {

constexpr int64_t kLanes = 64;

bool same(uint32_t a, uint32_t b) {
  return a == b || (std::isnan(std::bit_cast<float>(a)) && std::isnan(std::bit_cast<float>(b)));
}

// Magnitudes of all kinds, whole numbers, special values; a multiple of 64.
std::vector<uint32_t> interesting(int seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-45, 45), unit(-1, 1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<uint32_t> bits;
  for (float x : {0.0f, -0.0f, 1.0f, -1.0f, kInfinity, -kInfinity, std::nanf(""), 0.5f, 2.5f, -3.5f,
                  88.7f, -88.2f, 89.5f, -104.5f, 1e-40f, 3e38f, 0x1p-30f, 0x1p-31f, 0x1p32f}) {
    bits.push_back(std::bit_cast<uint32_t>(x));
  }
  while (bits.size() < 64 * 64) {
    for (float x : {unit(random) * std::exp2(exponent(random)), unit(random) * 20,
                    std::round(unit(random) * 9)}) {
      bits.push_back(std::bit_cast<uint32_t>(x));
    }
  }
  bits.resize(64 * 64);
  return bits;
}

// Runs code whose streams are these arrays, 64 lanes a group.
template <class Bytes>
void run(const CompiledVectors& code, int64_t lanes, std::initializer_list<Bytes*> streams,
         std::initializer_list<int64_t> bytes_of_lane) {
  VectorFrame frame;
  frame.groups = lanes / kLanes;
  size_t i = 0;
  for (Bytes* at : streams) {
    frame.streams[i] = {reinterpret_cast<std::byte*>(at), bytes_of_lane.begin()[i] * kLanes};
    i++;
  }
  code.run(frame);
}

}  // namespace

TEST(recorded_instructions_have_the_bits_of_the_kernels) {
  if (!has_vector_compiler()) return;  // such processors interpret
  int recorded = 0;
  for (int opcode = ABS; opcode < kNumOpcodes; opcode++) {
    if (inputs_of(opcode) < 0) continue;
    const uint32_t imm0 = std::bit_cast<uint32_t>(opcode == SOFTPLUS ? 0.5f : -1.25f);
    const uint32_t imm1 = std::bit_cast<uint32_t>(20.0f);
    VectorCode code;
    int streams[4];
    for (int& stream : streams) stream = code.add_stream(128);
    bool ok = true;
    for (int half = 0; half < 2; half++) {
      int in[3];
      for (int i = 0; i < 3; i++) in[i] = code.load(VectorOp::LOAD_LANES, streams[i], half);
      const int value = record_instruction(code, opcode, in[0], in[1], in[2], imm0, imm1);
      ok = value >= 0;
      if (!ok) break;
      code.store(VectorOp::STORE_LANES, streams[3], half, value);
    }
    if (!ok) {
      // Those with branches, and those that move lanes about.
      CHECK(opcode == SIN || opcode == COS || opcode == POW || opcode == WIDEN || opcode == NARROW);
      continue;
    }
    recorded++;
    const auto compiled = compile_vectors(code, kLanes);
    if (!compiled) {
      check::fail(__FILE__, __LINE__, "opcode " + std::to_string(opcode) + " is refused");
      continue;
    }
    std::vector<uint32_t> a = interesting(1), b = interesting(2), c = interesting(3);
    for (size_t i = 0; i < a.size(); i += 7) b[i] = a[i];
    std::vector<uint32_t> found(a.size()), wanted(a.size());
    const auto lanes = static_cast<int64_t>(a.size());
    run<uint32_t>(*compiled, lanes, {a.data(), b.data(), c.data(), found.data()}, {4, 4, 4, 4});
    tile_table(Simd::PORTABLE)
        .registers[opcode]
        .plain({wanted.data(), a.data(), b.data(), c.data(), imm0, imm1, lanes});
    for (size_t i = 0; i < a.size(); i++) {
      if (same(found[i], wanted[i])) continue;
      check::fail(__FILE__, __LINE__,
                  "opcode " + std::to_string(opcode) + " of lane " + std::to_string(a[i]) + ": " +
                      std::to_string(found[i]) + " for " + std::to_string(wanted[i]));
      break;
    }
  }
  CHECK(recorded > 50);
}

TEST(codes_are_decoded_and_encoded_as_the_format_says) {
  if (!has_vector_compiler()) return;
  for (bool ordinary : {true, false}) {
    VectorCode code;
    const int codes = code.add_stream(64), lanes = code.add_stream(128),
              again = code.add_stream(64);
    int encoded[2];
    for (int half = 0; half < 2; half++) {
      const int value = record_decode(code, code.load(VectorOp::LOAD_CODES, codes, half), ordinary);
      code.store(VectorOp::STORE_LANES, lanes, half, value);
      encoded[half] = ordinary ? record_encode_scaled(code, record_scaled_down(code, value), true)
                               : record_encode(code, value);
    }
    code.store(VectorOp::STORE_CODES, again, 0, encoded[0], encoded[1]);
    const auto compiled = compile_vectors(code, kLanes);
    CHECK(compiled != nullptr);
    std::vector<uint16_t> in;
    for (int c = 0; c < 0x10000; c++) {
      const auto word = static_cast<uint16_t>(c);
      const float magnitude = std::fabs(decode_dlfloat16(word));
      const bool in_range = magnitude == 0 || (magnitude >= 0x1p-30f && magnitude <= 0x1p32f);
      in.push_back(ordinary && !in_range ? 0 : word);
    }
    std::vector<uint32_t> values(in.size());
    std::vector<uint16_t> out(in.size());
    run<void>(*compiled, 0x10000, {in.data(), values.data(), out.data()}, {2, 4, 2});
    for (size_t i = 0; i < in.size(); i++) {
      CHECK(same(values[i], std::bit_cast<uint32_t>(decode_dlfloat16(in[i]))));
      CHECK_EQ(out[i], encode_dlfloat16(decode_dlfloat16(in[i])));
    }
  }
}

TEST(rounding_and_encoding_of_any_float32_is_that_of_the_format) {
  if (!has_vector_compiler()) return;
  VectorCode code;
  const int lanes = code.add_stream(128), rounded = code.add_stream(128),
            codes = code.add_stream(64);
  int encoded[2];
  for (int half = 0; half < 2; half++) {
    const int value = code.load(VectorOp::LOAD_LANES, lanes, half);
    code.store(VectorOp::STORE_LANES, rounded, half, record_round(code, value, false));
    encoded[half] = record_encode(code, value);
  }
  code.store(VectorOp::STORE_CODES, codes, 0, encoded[0], encoded[1]);
  const auto compiled = compile_vectors(code, kLanes);
  CHECK(compiled != nullptr);
  std::mt19937 random(5);
  std::vector<uint32_t> in = interesting(4);
  while (in.size() < 1 << 18) in.push_back(random());
  std::vector<uint32_t> values(in.size());
  std::vector<uint16_t> out(in.size());
  run<void>(*compiled, static_cast<int64_t>(in.size()), {in.data(), values.data(), out.data()},
            {4, 4, 2});
  for (size_t i = 0; i < in.size(); i++) {
    const uint16_t wanted = encode_dlfloat16(std::bit_cast<float>(in[i]));
    CHECK_EQ(out[i], wanted);
    CHECK(same(values[i], std::bit_cast<uint32_t>(decode_dlfloat16(wanted))));
  }
}

// Of all numbers of DLFloat16 that are near enough.
TEST(exponentials_of_near_numbers_have_the_bits_of_those_of_all_numbers) {
  if (!has_vector_compiler()) return;
  for (const int opcode : {SHORT_EXP, SHORT_SIGMOID, SHORT_SILU, SHORT_GELU_ERF}) {
    VectorCode code;
    const int in = code.add_stream(128), near = code.add_stream(128), all = code.add_stream(128);
    for (int half = 0; half < 2; half++) {
      const int value = code.load(VectorOp::LOAD_LANES, in, half);
      code.store(VectorOp::STORE_LANES, near, half, record_near(code, opcode, value));
      code.store(VectorOp::STORE_LANES, all, half,
                 record_instruction(code, opcode, value, -1, -1, 0, 0));
    }
    const auto compiled = compile_vectors(code, kLanes);
    CHECK(compiled != nullptr);
    std::vector<uint32_t> numbers;
    for (int c = 0; c < 0x10000; c++) {
      const float number = decode_dlfloat16(static_cast<uint16_t>(c));
      if (std::fabs(number) <= nearness_of(opcode)) {
        numbers.push_back(std::bit_cast<uint32_t>(number));
      }
    }
    CHECK(numbers.size() > 30000);
    numbers.resize(numbers.size() / kLanes * kLanes);
    std::vector<uint32_t> found(numbers.size()), wanted(numbers.size());
    run<uint32_t>(*compiled, static_cast<int64_t>(numbers.size()),
                  {numbers.data(), found.data(), wanted.data()}, {4, 4, 4});
    CHECK(found == wanted);
  }
}

// Every pair of significands, and what rounding makes of the quotient: the proof of a product with
// a reciprocal (jit/specialisations.cpp) by trying it.
TEST(a_product_with_a_reciprocal_that_is_a_little_too_large_has_the_code_of_the_quotient) {
  for (int divisor = 512; divisor < 1024; divisor++) {
    const float by = static_cast<float>(divisor);
    const float reciprocal = std::bit_cast<float>(std::bit_cast<uint32_t>(1.0f / by) + 1);
    for (int dividend = 512; dividend < 1024; dividend++) {
      const float number = static_cast<float>(dividend);
      CHECK_EQ(encode_dlfloat16(number * reciprocal), encode_dlfloat16(number / by));
    }
  }
}

// Sums of more values than there are registers, all of them alive at once.
TEST(code_that_needs_too_many_registers_is_refused) {
  if (!has_vector_compiler()) return;
  for (const int count : {8, 40}) {
    VectorCode code;
    const int in = code.add_stream(128), out = code.add_stream(128);
    std::vector<int> values;
    for (int i = 0; i < count; i++) {
      const int x = code.load(VectorOp::LOAD_LANES, in, i % 2);
      values.push_back(code.make(VectorOp::INT_ADD, x, code.constant(i)));
    }
    int sum = values[0];
    for (int i = 1; i < count; i++) sum = code.make(VectorOp::INT_ADD, sum, values[i]);
    code.store(VectorOp::STORE_LANES, out, 0, sum);
    CHECK_EQ(compile_vectors(code, kLanes) != nullptr, count == 8);
  }
}

// Chains on vectors, a row that repeats and a value for all, on ordinary numbers, on numbers that
// leave the range of DLFloat16 on the way, with infinities and NaN, and ordinary ones with a few
// exceptions in later rows; alone, and as two phases with a sum and a maximum of each row between
// them.
TEST(random_chains_have_the_bits_of_the_interpreter_whatever_their_numbers_are) {
  constexpr int64_t kRows = 37, kSticks = 3;
  const std::vector<int> unary = {
      ABS,  NEG,        RELU,  SHORT_EXP, SHORT_SIGMOID, SHORT_TANH, SHORT_SILU, SHORT_GELU_ERF,
      SQRT, RECIPROCAL, FLOOR, EXP,       LOG,           ERF};
  const std::vector<int> binary = {ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, LT, EQ};
  for (int seed = 0; seed < 320; seed++) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % (high - low + 1));
    };
    Rig rig;
    const int kind = seed % 4;
    std::normal_distribution<float> normal;
    const int64_t full = kRows * kSticks * 128;
    for (const int64_t bytes : {full, full, kSticks * 128, int64_t{128}, full, full}) {
      auto* codes = reinterpret_cast<uint16_t*>(rig.add_argument(bytes));
      for (int64_t i = 0; i < bytes / 2; i++) {
        codes[i] = encode_dlfloat16(normal(random));
        if ((kind == 1 || kind == 2) && pick(0, 9) == 0) {
          codes[i] =
              encode_dlfloat16(normal(random) * std::exp2(static_cast<float>(pick(-28, 28))));
        }
        if (kind == 2 && pick(0, 99) == 0) codes[i] = static_cast<uint16_t>(random());
        if (kind == 3 && i % (bytes / (2 * kSticks)) > bytes / (4 * kSticks) && pick(0, 999) == 0) {
          codes[i] = static_cast<uint16_t>(random());
        }
      }
    }
    // The operand of one value; products with powers of two are not rounded.
    if (pick(0, 1) == 0) {
      *reinterpret_cast<uint16_t*>(rig.host(3)) =
          encode_dlfloat16((pick(0, 1) ? 1 : -1) * std::exp2(static_cast<float>(pick(-20, 20))));
    }
    const bool reduces = pick(0, 1) == 1;
    TileSpec spec{.lanes = 64, .stick_dim = 1, .extents = {{kRows, kSticks}}};
    spec.kept = reduces ? 1 : 2;
    spec.reduced = reduces ? 1 : 0;
    const Words by_point = {128, kRows * 128};
    spec.operands = {{.strides = by_point, .argument = 0},
                     {.strides = by_point, .argument = 1},
                     {.strides = {0, 128}, .argument = 2},
                     {.form = OperandForm::SPLAT, .strides = {0, 0}, .argument = 3},
                     {.strides = by_point, .argument = pick(0, 3) == 0 ? 0 : 4}};
    spec.body = {{LOAD, 0, 0}, {LOAD, 1, 1}, {LOAD, 2, 2}, {LOAD, 3, 3}};
    const auto chain = [&](std::vector<InstructionSpec>& body, int64_t registers) {
      for (int64_t i = pick(2, 7); i > 0; i--) {
        const int64_t to = pick(0, registers), a = pick(0, registers), b = pick(0, registers);
        switch (pick(0, 5)) {
          case 0:
            body.push_back({MUL_CONSTANT, to, a, -1, -1, pick(0, 1) ? 0.5f : 1.75f});
            break;
          case 1:
            body.push_back({WHERE, to, a, b, pick(0, registers)});
            break;
          case 2:
          case 3:
            body.push_back({unary[random() % unary.size()], to, a});
            break;
          default:
            body.push_back({binary[random() % binary.size()], to, a, b});
        }
        if (pick(0, 3) > 0) body.push_back({ROUND, to, to, int(DataFormat::SEN169_FP16)});
      }
    };
    chain(spec.body, 3);
    if (reduces) {
      spec.reduce_lanes = pick(0, 3) > 0;
      spec.reductions = {{1, 0, 10}, {0, 1, 11}};
      spec.epilogue = {{ROUND, 11, 11, int(DataFormat::SEN169_FP16)}};
      spec.further = {{{{SPREAD, 4, 10}, {SPREAD, 5, 11}, {SUB, 0, 0, 4}, {MUL, 1, 1, 5}}}};
      chain(spec.further[0].body, 5);
      spec.further[0].body.push_back({STORE, 4, 0});
    } else {
      spec.body.push_back({STORE, 4, pick(0, 3)});
    }
    const auto bytes = [&] {
      std::vector<std::vector<std::byte>> all;
      for (size_t i = 0; i < 5; i++) {
        const int64_t size = i == 2 ? kSticks * 128 : i == 3 ? 128 : full;
        all.emplace_back(rig.host(i), rig.host(i) + size);
      }
      return all;
    };
    const auto before = bytes();
    rig.run_with(spec, Simd::PORTABLE);
    const auto wanted = bytes();
    for (size_t i = 0; i < before.size(); i++) {
      std::memcpy(rig.host(i), before[i].data(), before[i].size());
    }
    rig.run({tile_step(spec)});
    if (bytes() != wanted) {
      check::fail(__FILE__, __LINE__, "seed " + std::to_string(seed) + " differs");
    }
  }
}

// Many tiles, so that code assumes of most of them what it has seen of the first: a softmax, a
// SwiGLU and rows that are scaled. Without exceptions, with one in a thousand numbers of later
// rows, and with rows of other magnitudes.
TEST(programs_of_many_tiles_have_the_bits_of_the_interpreter_where_assumptions_fail) {
  constexpr int64_t kRows = 200, kSticks = 3, kBytes = kRows * kSticks * 128;
  constexpr int kCodes = int(DataFormat::SEN169_FP16);
  const Words by_point = {128, kRows * 128};
  TileSpec softmax{.lanes = 64, .kept = 1, .reduced = 1, .stick_dim = 1};
  softmax.extents = {{kRows, kSticks}};
  softmax.operands = {{.strides = by_point, .argument = 0}, {.strides = by_point, .argument = 3}};
  softmax.body = {{LOAD, 0, 0}};
  softmax.reductions = {{1, 0, 0}};
  softmax.reduce_lanes = true;
  softmax.further = {{{{SPREAD, 1, 0},
                       {SUB, 0, 0, 1},
                       {ROUND, 0, 0, kCodes},
                       {SHORT_EXP, 0, 0},
                       {ROUND, 0, 0, kCodes}},
                      {{0, 0, 0}},
                      {{ROUND, 0, 0, kCodes}}},
                     {{{SPREAD, 1, 0}, {DIV, 0, 0, 1}, {STORE, 1, 0}}}};
  TileSpec swiglu{.lanes = 64, .kept = 2, .stick_dim = 1, .extents = {{kRows, kSticks}}};
  swiglu.operands = {{.strides = by_point, .argument = 0},
                     {.strides = by_point, .argument = 1},
                     {.strides = by_point, .argument = 3}};
  swiglu.body = {{LOAD, 0, 0}, {SHORT_SILU, 0, 0}, {ROUND, 0, 0, kCodes},
                 {LOAD, 1, 1}, {MUL, 0, 0, 1},     {STORE, 2, 0}};
  TileSpec scaled = softmax;  // x * w + v - the largest x of the row
  scaled.operands = {{.strides = by_point, .argument = 0},
                     {.strides = {0, 128}, .argument = 1},
                     {.strides = {0, 128}, .argument = 2},
                     {.strides = by_point, .argument = 3}};
  scaled.further = {{{{LOAD, 1, 1},
                      {MUL, 1, 0, 1},
                      {LOAD, 2, 2},
                      {ADD, 1, 1, 2},
                      {SPREAD, 2, 0},
                      {SUB, 0, 1, 2},
                      {STORE, 3, 0}}}};
  // (x - mean) * variance
  TileSpec moments = softmax;
  moments.reductions = {{4, 0, 0}};
  moments.further = {
      {{{SPREAD, 1, 0}, {SUB, 0, 0, 1}, {SPREAD, 2, 1}, {MUL, 0, 0, 2}, {STORE, 1, 0}}}};
  TileSpec short_moments = moments;
  short_moments.reductions = {{5, 0, 0}};
  // The same times w plus v: a layer norm, but for its root.
  TileSpec norm = short_moments;
  norm.operands = scaled.operands;
  norm.further = {{{{SPREAD, 1, 0},
                    {SUB, 0, 0, 1},
                    {SPREAD, 2, 1},
                    {MUL, 0, 0, 2},
                    {LOAD, 1, 1},
                    {MUL, 0, 0, 1},
                    {LOAD, 2, 2},
                    {ADD, 0, 0, 2},
                    {STORE, 3, 0}}}};
  // Of x + x, which lasts from phase to phase.
  TileSpec norm_of_sum = norm;
  norm_of_sum.body = {{LOAD, 0, 0}, {ADD, 0, 0, 0}, {ROUND, 0, 0, kCodes}};
  // x * w * w, where w is one value for all, and one for each row: the code may rely on the former
  // only.
  TileSpec by_constant = swiglu;
  by_constant.operands[1] = {.form = OperandForm::SPLAT, .strides = {0, 0}, .argument = 1};
  by_constant.body = {{LOAD, 0, 0},          {LOAD, 1, 1},   {MUL, 0, 0, 1},
                      {ROUND, 0, 0, kCodes}, {MUL, 0, 0, 1}, {STORE, 2, 0}};
  TileSpec by_row = by_constant;
  by_row.operands[1].strides = {128, 0};
  // relu((x * y + x) * w - y): a sum that nothing rounds before it is stored.
  TileSpec arithmetic = by_constant;
  arithmetic.operands = {{.strides = by_point, .argument = 0},
                         {.strides = by_point, .argument = 2},
                         {.form = OperandForm::SPLAT, .strides = {0, 0}, .argument = 1},
                         {.strides = by_point, .argument = 3}};
  arithmetic.body = {{LOAD, 0, 0},          {LOAD, 1, 1},   {LOAD, 3, 2},          {MUL, 2, 0, 1},
                     {ROUND, 2, 2, kCodes}, {ADD, 0, 2, 0}, {ROUND, 0, 0, kCodes}, {MUL, 0, 0, 3},
                     {ROUND, 0, 0, kCodes}, {SUB, 0, 0, 1}, {RELU, 0, 0},          {STORE, 3, 0}};
  for (const TileSpec& spec : {softmax, swiglu, scaled, moments, short_moments, norm, norm_of_sum,
                               by_constant, by_row, arithmetic}) {
    for (int kind = 0; kind < 7; kind++) {
      std::mt19937 random(kind);
      std::normal_distribution<float> normal;
      Rig rig;
      for (int argument = 0; argument < 4; argument++) {
        auto* codes = reinterpret_cast<uint16_t*>(rig.add_argument(kBytes));
        for (int64_t i = 0; i < kBytes / 2; i++) {
          const int64_t row = i / 64 % kRows;
          float number = normal(random);
          if (kind == 2 && row % 50 > 40) number *= 0x1p-12f;
          if (kind == 3 && argument == 1 && row > 150) number *= 0x1p-16f;
          // Operands are ordinary, results around the smallest number of the format.
          if (kind == 4 && argument == 1) number = (1.0f + std::fabs(number)) * 0x1p-30f;
          if (kind == 4 && argument == 2) number = i % 3 == 0 ? 0.0f : 0x1p-30f * (i % 5 - 2);
          // Powers of two, in all rows and in most.
          if (kind >= 5 && argument == 1) number = kind == 6 && row > 150 ? 0.7f : -0x1p-3f;
          codes[i] = encode_dlfloat16(number);
          if (kind == 1 && row > 20 && random() % 1000 == 0) {
            codes[i] = static_cast<uint16_t>(random());
          }
        }
      }
      rig.run_with(spec, Simd::PORTABLE);
      const std::vector<std::byte> wanted(rig.host(3), rig.host(3) + kBytes);
      for (int threads : {2, 1}) {  // one has longer tiles
        rig.pool.resize(threads);
        std::memset(rig.host(3), 0, kBytes);
        rig.run({tile_step(spec)});
        if (std::memcmp(rig.host(3), wanted.data(), kBytes) != 0) {
          check::fail(__FILE__, __LINE__, "kind " + std::to_string(kind) + " differs");
        }
      }
    }
  }
}
