// The instructions of tile programs on tiles of 32-bit lanes, as tables of functions.
//
// There is one table for each form of SIMD, with the same results to the bit (but for the sign and
// the payload of NaN). Example:
//   tile_table(best_simd()).registers[ADD].plain({out, a, b, nullptr, 0, 0, 512})
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics/convert.h"
#include "tile/bounds.h"

namespace spyre::card {

// Numbers are those of docs/formats/program.md.
enum Opcode : int {
  LOAD = 0,
  STORE = 1,
  ROUND = 2,
  SPREAD = 3,
  ABS = 10,
  NEG = 11,
  EXP = 12,
  LOG = 13,
  SQRT = 14,
  RSQRT = 15,
  RECIPROCAL = 16,
  SIGMOID = 17,
  TANH = 18,
  SILU = 19,
  GELU_ERF = 20,
  GELU_TANH = 21,
  RELU = 22,
  FLOOR = 23,
  CEIL = 24,
  TRUNC = 25,
  ROUND_EVEN = 26,
  SIN = 27,
  COS = 28,
  ERF = 29,
  LOG1P = 30,
  EXPM1 = 31,
  ISNAN = 32,
  COPY = 33,
  ADD = 40,
  SUB = 41,
  MUL = 42,
  DIV = 43,
  MAXIMUM = 44,
  MINIMUM = 45,
  EQ = 46,
  NE = 47,
  LT = 48,
  LE = 49,
  GT = 50,
  GE = 51,
  POW = 52,
  WHERE = 60,
  CLIP = 61,
  SOFTPLUS = 62,
  CONSTANT = 63,
  ADD_CONSTANT = 64,
  MUL_CONSTANT = 65,
  WIDEN = 70,
  NARROW = 71,
  INT_TO_FLOAT = 72,
  FLOAT_TO_INT = 73,
  CONSTANT_BITS = 74,
  INT_ABS = 80,
  INT_NEG = 81,
  INT_ADD = 82,
  INT_SUB = 83,
  INT_MUL = 84,
  INT_MAX_OF = 85,
  INT_MIN_OF = 86,
  INT_EQ = 87,
  INT_NE = 88,
  INT_LT = 89,
  INT_LE = 90,
  INT_GT = 91,
  INT_GE = 92,
  SHORT_EXP = 100,  // of results that are stored in 16 bits
  SHORT_SIGMOID = 101,
  SHORT_TANH = 102,
  SHORT_SILU = 103,
  SHORT_GELU_ERF = 104,
  SHORT_GELU_TANH = 105,
};
constexpr int kNumOpcodes = 106;

// Register operands of an opcode: 0 to 3; -1 when there is no such opcode in the table (LOAD, STORE
// and ROUND are not).
int inputs_of(int opcode);

enum class ReduceOp : int8_t { SUM = 0, MAX = 1, MIN = 2, PRODUCT = 3, EXX2 = 4 };
constexpr int kNumFoldOps = 4;  // all but EXX2
// The words of programs: these, and one for EXX2 of numbers with the bits of DLFloat16.
constexpr int64_t kShortExx2 = 5;
inline ReduceOp reduce_op(int64_t word) {
  return word == kShortExx2 ? ReduceOp::EXX2 : static_cast<ReduceOp>(word);
}

constexpr int kMomentParts = 8;  // of a sum of EXX2 where lanes are reduced

// Instructions that often follow each other: in normalisations of rows.
enum InstructionPair : int { SUB_MUL, MUL_ADD, kNumPairs };
constexpr int kNoPair = -1;
constexpr int pair_of(int first, int second) {
  if (first == SUB && second == MUL) return SUB_MUL;
  if (first == MUL && second == ADD) return MUL_ADD;
  return kNoPair;
}

// `lanes` is a multiple of 32; registers are aligned to 32 bytes; out may be one of the inputs.
struct TileArguments {
  uint32_t* out;
  const uint32_t *a, *b, *c;
  uint32_t imm0, imm1;
  int64_t lanes;
  // Where b has one value for each group of lanes: lanes of a group, lanes until b repeats, and how
  // far its values are apart. Where all groups have the same lanes of b: lanes of a group.
  int64_t group = 0, period = 0, b_step = 0;
};
using TileKernel = void (*)(const TileArguments&);
using RoundingKernel = Bounds (*)(const TileArguments&);  // gives bounds of what it has written

// Ways to compute one thing; nullptr where there is none.
struct Kernels {
  TileKernel plain = nullptr;
  // Then rounded to DLFloat16; of quick ones only.
  RoundingKernel rounded = nullptr;
  TileKernel in_range = nullptr;  // the same bits where bounds say that results keep in range
};

struct TileTable {
  Kernels registers[kNumOpcodes];
  // With one value of b for each group; of binary ones that are quick.
  Kernels by_group[kNumOpcodes];
  // With the same lanes of b for every group.
  Kernels repeated[kNumOpcodes];
  // Two instructions in one pass, of which the first is not rounded; c is the second input of the
  // second one, and both are as in by_group or in repeated.
  Kernels pair_by_group[kNumPairs];
  Kernels pair_repeated[kNumPairs];

  Bounds (*round_dlfloat16)(uint32_t* out, const uint32_t* in, int64_t lanes);
  // As those of numerics/convert.h, for multiples of 32 lanes; quicker where no lane is special.
  void (*encode_dlfloat16)(std::byte* out, const uint32_t* in, int64_t lanes);
  void (*encode_in_range)(std::byte* out, const uint32_t* in, int64_t lanes);
  Bounds (*decode_dlfloat16)(uint32_t* out, const std::byte* in, int64_t lanes);

  // total = op(total, values), lane by lane.
  void (*fold[kNumFoldOps])(uint32_t* total, const uint32_t* values, int64_t lanes);
  // The same where the mask, of a group of lanes, has ones.
  void (*fold_masked[kNumFoldOps])(uint32_t* total, const uint32_t* values, const uint32_t* mask,
                                   int group, int64_t lanes);
  // Folds each group of `group` lanes into one value and puts it in all its lanes.
  void (*fold_lanes[kNumFoldOps])(uint32_t* totals, int group, int64_t lanes);
  // sum += value, squares += value * value; where the mask has ones (nullptr: everywhere).
  void (*add_moments)(double* sums, double* squares, const uint32_t* values, const uint32_t* mask,
                      int64_t lanes);
  // The same where a group of lanes has one sum; it is kept in kMomentParts, those of one group
  // after those of the other, until fold_moments adds them and leaves the first.
  void (*add_group_moments)(double* sums, double* squares, const uint32_t* values,
                            const uint32_t* mask, int group, int64_t lanes);
  // The same of numbers with the 10 significant bits of DLFloat16: four are added in float32 before
  // they meet the others in float64.
  void (*add_short_moments)(double* sums, double* squares, const uint32_t* values,
                            const uint32_t* mask, int group, int64_t lanes);
  void (*fold_moments)(double* totals, int64_t groups);
};
// Throws std::invalid_argument when this processor or build does not have the form.
const TileTable& tile_table(Simd simd);

namespace simd_avx2 {
extern const TileTable kTileTable;
}
namespace simd_portable {
extern const TileTable kTileTable;
}

}  // namespace spyre::card
