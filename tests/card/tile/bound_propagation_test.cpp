// Bounds of magnitudes: they hold for what kernels compute, and where they say that rounding may
// do without looking, it gives the same bits.
#include "tile/bound_propagation.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "support/check.h"

using namespace spyre::card;

namespace {

constexpr int64_t kLanes = 512;
using Lanes = std::vector<uint32_t>;

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
float float_of(uint32_t value) { return std::bit_cast<float>(value); }

std::vector<Simd> forms() {
  return has_simd(Simd::AVX2) ? std::vector{Simd::PORTABLE, Simd::AVX2}
                              : std::vector{Simd::PORTABLE};
}

bool hold(const Bounds& bounds, uint32_t lane) {
  const float magnitude = std::fabs(float_of(lane));
  if (std::isnan(magnitude)) return bounds.most == std::numeric_limits<float>::infinity();
  if (bounds.coarse && std::isfinite(magnitude) && (lane & 0x3fff) != 0) return false;
  if (magnitude == 0) return bounds.zeros;
  return bounds.least <= magnitude && magnitude <= bounds.most;
}

// Numbers of the format between two magnitudes, some of them zero.
Lanes random_lanes(std::mt19937& random, float low, float high, bool zeros) {
  std::uniform_real_distribution<float> exponent(std::log2(low), std::log2(high));
  Lanes lanes(kLanes);
  for (uint32_t& lane : lanes) {
    const float magnitude = std::exp2(exponent(random));
    const float value = random() % 2 != 0 ? magnitude : -magnitude;
    const bool zero = zeros && random() % 8 == 0;
    lane = bits_of(zero ? 0.0f : decode_dlfloat16(encode_dlfloat16(value)));
  }
  return lanes;
}

// From what a tile has in memory.
Bounds loaded(const TileTable& table, const Lanes& lanes) {
  std::vector<uint16_t> codes;
  for (uint32_t lane : lanes) codes.push_back(encode_dlfloat16(float_of(lane)));
  Lanes out(lanes.size());
  const Bounds bounds =
      table.decode_dlfloat16(out.data(), reinterpret_cast<const std::byte*>(codes.data()), kLanes);
  CHECK(out == lanes);
  return bounds;
}

// From one value after another, as results of reductions are looked at.
Bounds scanned(const Lanes& lanes) {
  Bounds bounds = Bounds::none();
  for (uint32_t lane : lanes) bounds.include(Bounds::of(lane));
  for (uint32_t lane : lanes) CHECK(hold(bounds, lane));
  return bounds;
}

void check_opcode(const TileTable& table, int opcode, const Lanes& a, const Lanes& b, int& quick) {
  const Kernels& kernels = table.registers[opcode];
  const bool constant = opcode == ADD_CONSTANT || opcode == MUL_CONSTANT;
  Lanes exact(kLanes), rounded(kLanes), in_range(kLanes);
  const auto arguments = [&](Lanes& out) {
    return TileArguments{out.data(), a.data(), b.data(), nullptr, b[0], 0, kLanes};
  };
  const Bounds bounds = opcode == RECIPROCAL ? bounds_of(opcode, scanned(a), {})
                                             : bounds_of(opcode, loaded(table, a),
                                                         constant ? Bounds::of(b[0]) : scanned(b));
  const Bounds known = loaded(table, b);
  for (uint32_t lane : b) CHECK(hold(known, lane));
  kernels.plain(arguments(exact));
  const Bounds after = kernels.rounded(arguments(rounded));
  for (int64_t i = 0; i < kLanes; i++) {
    if (!hold(bounds, exact[i]) || !hold(after, rounded[i])) {
      check::fail(__FILE__, __LINE__,
                  "opcode " + std::to_string(opcode) + " of " + check::show(float_of(a[i])) +
                      " and " + check::show(float_of(b[i])) + " is " +
                      check::show(float_of(exact[i])) + ", bounds are " +
                      check::show(bounds.least) + " and " + check::show(bounds.most) +
                      ", rounded " + check::show(after.least) + " and " + check::show(after.most));
      return;
    }
  }
  if (!bounds.keeps_in_range()) return;
  quick++;
  kernels.in_range(arguments(in_range));
  CHECK(in_range == rounded);
  const Bounds said = bounds.rounded();
  for (uint32_t lane : rounded) CHECK(hold(said, lane));
  if (bounds.coarse) CHECK(exact == rounded);
}

TEST(bounds_hold_for_every_instruction_and_rounding_without_looking_gives_the_same_bits) {
  std::mt19937 random(1);
  const float edges[] = {0x1p-31f * 1.002f,
                         0x1p-24f,
                         0x1p-12f,
                         0.01f,
                         0.5f,
                         1.0f,
                         5.5f,
                         16.0f,
                         20.0f,
                         1e3f,
                         1e6f,
                         0x1p31f};
  constexpr int kEdges = std::size(edges);
  for (Simd simd : forms()) {
    const TileTable& table = tile_table(simd);
    for (int opcode = 0; opcode < kNumOpcodes; opcode++) {
      if (table.registers[opcode].in_range == nullptr || opcode == CLIP) continue;
      int quick = 0;
      for (int round = 0; round < 150; round++) {
        const auto draw = [&] {
          const int low = static_cast<int>(random() % (kEdges - 1));
          const int high = low + 1 + static_cast<int>(random() % (kEdges - 1 - low));
          return random_lanes(random, edges[low], edges[high], random() % 2 != 0);
        };
        const Lanes a = draw();
        Lanes b = draw();
        // Differences that cancel, or nearly.
        for (int64_t i = 0; round % 3 == 0 && i < kLanes; i++) {
          const int32_t by = static_cast<int32_t>(random() % 3 - 1) * (1 << Dlfloat16::kShift);
          const float value = float_of(a[i] + by);
          b[i] = a[i] == 0 ? 0 : bits_of(decode_dlfloat16(encode_dlfloat16(-value)));
        }
        check_opcode(table, opcode, a, b, quick);
      }
      if (opcode != SQRT) CHECK(quick > 0);  // its operand could be negative
    }
  }
}

TEST(special_lanes_are_out_of_range_wherever_they_are) {
  for (Simd simd : forms()) {
    const TileTable& table = tile_table(simd);
    for (float special :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN(), 0x1p33f, 0x1p-32f}) {
      for (int64_t lane = 0; lane < kLanes; lane += 37) {
        Lanes lanes(kLanes, bits_of(1.0f)), out(kLanes);
        lanes[lane] = bits_of(special);
        CHECK(!table.round_dlfloat16(out.data(), lanes.data(), kLanes).keeps_in_range());
        if (std::fabs(special) == 0x1p-32f) continue;
        std::vector<uint16_t> codes(kLanes, Dlfloat16::kOne);
        codes[lane] = encode_dlfloat16(special);
        const auto* from = reinterpret_cast<const std::byte*>(codes.data());
        CHECK(!table.decode_dlfloat16(out.data(), from, kLanes).keeps_in_range());
        CHECK_EQ(out[lane], bits_of(decode_dlfloat16(codes[lane])));
        for (int opcode : {ADD, MUL, DIV, SHORT_EXP, SHORT_TANH, SHORT_GELU_ERF, RELU, MAXIMUM}) {
          const Bounds known = table.decode_dlfloat16(out.data(), from, kLanes);
          CHECK(!bounds_of(opcode, known, Bounds::of(bits_of(1.0f))).keeps_in_range());
        }
      }
    }
  }
}

TEST(encoding_without_looking_is_encoding) {
  std::mt19937 random(2);
  for (Simd simd : forms()) {
    const TileTable& table = tile_table(simd);
    std::uniform_real_distribution<float> exponent(-29.9f, 31.9f);
    for (int round = 0; round < 50; round++) {
      Lanes lanes(kLanes);
      for (uint32_t& lane : lanes) {
        const float magnitude = random() % 9 == 0 ? 0.0f : std::exp2(exponent(random));
        lane = bits_of(random() % 2 != 0 ? magnitude : -magnitude);
      }
      std::vector<uint16_t> quick(kLanes);
      table.encode_in_range(reinterpret_cast<std::byte*>(quick.data()), lanes.data(), kLanes);
      for (int64_t i = 0; i < kLanes; i++) CHECK_EQ(quick[i], encode_dlfloat16(float_of(lanes[i])));
    }
  }
}

}  // namespace
