// Straight-line code on vectors of 16 lanes of 32 bits, as data: what a body of a tile program does
// to some of its lanes, before it becomes instructions of a processor (jit/machine_code.h).
//
// Code is a list of values, each made of earlier ones; equal values are made once, and what depends
// on constants only is computed while recording. Lanes have no type: operations say what they are.
// Values that comparisons make are masks, one bit a lane.
//
// Example: 2 * x of a stream of lanes, in place:
//   VectorCode code;
//   const int s = code.add_stream(128), x = code.load(VectorOp::LOAD_LANES, s, 0);
//   code.store(VectorOp::STORE_LANES, s, 0, code.make(VectorOp::ADD, x, x));
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace spyre::card {

enum class VectorOp : uint8_t {
  CONSTANT,  // the word in every lane
  // From memory: 16 codes of 16 bits with their sign in the upper half of the lane; 16 lanes; one
  // lane in all.
  LOAD_CODES,
  LOAD_SHIFTED,  // codes shifted by 14, above bits that do not matter; of split lanes only
  LOAD_LANES,
  LOAD_SPLAT,
  // To memory: 16 lanes; the upper halves of the 32 lanes of a and b.
  STORE_LANES,
  STORE_CODES,
  // In memory: 8 sums in float64 of the 32 lanes of a and b, and in the second stream of squares.
  // imm 1: the lanes have few bits, and four are added in float32 before, neighbours first.
  ADD_MOMENTS,
  // Leaves the code for that of the cold form, which begins again with these lanes, where mask a or
  // b has a bit. All stores follow it.
  GUARD,
  // Likewise where one of the 32 codes of a stream is neither zero nor of a magnitude inside of
  // limits, which the frame has. imm 1: codes that are some rows further on are fetched.
  GUARD_CODES,
  // float32
  ADD,
  SUB,
  MUL,  // imm 1: with 2^-96, to encode what is in range; 2: with a power of two, exact
  DIV,
  FMA,   // a * b + c, rounded once
  FMS,   // a * b - c
  FNMA,  // c - a * b
  SQRT,
  MAX,       // a > b ? a : b
  MIN,       // a < b ? a : b
  ROUND,     // imm: 0 even, 1 floor, 2 ceil, 3 trunc
  TO_INT,    // toward zero; what does not fit is the smallest integer
  TO_FLOAT,  // of integers
  // integers
  INT_ADD,
  INT_SUB,
  INT_MUL,
  INT_MAXIMUM,
  INT_MINIMUM,
  UINT_MAXIMUM,
  UINT_MINIMUM,
  AND,
  OR,
  XOR,
  SHIFT_LEFT,  // by imm, as are the following
  SHIFT_RIGHT,
  SHIFT_RIGHT_SIGNED,
  TAKE_BITS,  // where c has ones those of a, elsewhere those of b
  // masks
  COMPARE,       // float32; imm is a Comparison
  INT_COMPARE,   // imm is a Comparison
  UINT_COMPARE,  // imm is a Comparison
  TEST,          // whether a and b have a bit in common
  IS_SUBNORMAL,  // float32; zero is not
  MASK_AND,
  MASK_OR,
  MASK_NOT,
  MASK_LANES,  // all ones where the mask is set
  SELECT,      // where mask a is set b, elsewhere c
  KEEP,        // where mask a is set b, elsewhere zero
  // integers where mask a is set
  ADD_WHERE,      // b + c, elsewhere b
  MAXIMUM_WHERE,  // the larger one of b and c, elsewhere b
  KEEP_MAXIMUM,   // the larger one of b and c, elsewhere zero
};

// As processors number them; all but NOT_EQUAL are false for NaN.
enum class Comparison : uint8_t { EQUAL = 0, LESS = 1, LESS_EQUAL = 2, NOT_EQUAL = 4 };

bool is_mask(VectorOp op);

struct VectorValue {
  VectorOp op = VectorOp::CONSTANT;
  uint8_t imm = 0;
  int a = -1, b = -1, c = -1;
  uint32_t word = 0;  // of a constant; the number of a stream
  int half = 0;       // of the 32 lanes of an iteration, for loads and stores of 16
  int second = 0;     // stream; the number of the limits
};

// A place in memory that code walks along: an iteration of 32 lanes moves it by `step` bytes inside
// of a group of lanes. One that is `fixed` is where it was at the next group.
struct VectorStream {
  int64_t step = 0;
  bool fixed = false;
};

class VectorCode {
 public:
  int add_stream(int64_t step, bool fixed = false) {
    streams_.push_back({step, fixed});
    return static_cast<int>(streams_.size()) - 1;
  }
  int constant(uint32_t word);
  int make(VectorOp op, int a, int b = -1, int c = -1, int imm = 0);
  int load(VectorOp op, int stream, int half);
  // The value, if it is a product, is one with a power of two that loses nothing.
  void mark_exact(int product);
  void store(VectorOp op, int stream, int half, int a, int b = -1);
  void add_moments(int sums, int squares, int a, int b, bool few_bits);
  void guard(int mask, int other = -1);
  void guard_codes(int stream, int limits, bool fetches);

  // Dead code elimination: drops values that nothing stores.
  void drop_unused();
  // Orders values by how many others they depend on, one after the other: what does not depend on
  // each other, such as the halves, stands side by side. It needs more registers.
  void alternate();
  // Products with 2^96 and 2^-96, which decode and encode codes, and others that are exact become
  // part of the sums next to them: jit/fold_scaling.cpp.
  void fold_scaling();
  // Of 32 lanes a half is 16 neighbours, or, where they are split, every other one. Codes are
  // decoded with fewer instructions then. It makes no difference to code that knows nothing of the
  // places of its lanes.
  bool can_split() const;
  void split();
  bool is_split() const { return split_; }

  const std::vector<VectorValue>& values() const { return values_; }
  const std::vector<VectorStream>& streams() const { return streams_; }
  bool is_constant(int value) const { return values_[value].op == VectorOp::CONSTANT; }

 private:
  using Key = std::tuple<VectorOp, uint8_t, int, int, int, uint32_t, int, int>;

  int add(const VectorValue& value);
  void rearrange(const std::vector<int>& order);  // to these values, in this order
  bool fold(VectorOp op, int a, int b, int imm, uint32_t& word) const;
  bool is_product_with(int value, uint32_t word) const;
  bool is_decoded(int value) const;

  std::vector<VectorValue> values_;
  std::vector<VectorStream> streams_;
  std::map<Key, int> known_;
  int stores_ = 0;      // what is loaded after a store is another value
  bool split_ = false;  // how lanes are divided into halves
};

}  // namespace spyre::card
