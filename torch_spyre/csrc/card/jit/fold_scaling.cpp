// Fewer instructions for codes of DLFloat16: the products that decode and encode them.
//
// A code, shifted, is its number times 2^-96 (jit/record.cpp). Decoding is a product with 2^96,
// which is exact; so is what a fused multiply-add does with it before it adds:
//   x * 2^96 + y             is a sum of a number that is decoded and y
//   p * 2^-96 + b            is a sum of p and b, encoded, where b is what the code has
// The second one has the bits of (p + b * 2^96) * 2^-96 unless it is subnormal, and then the result
// is out of the range for which such code is. Products with other powers of two are exact, too.
//
// And the halves of 32 lanes: neighbours have to be brought apart, every other one is where it is.
#include <algorithm>
#include <bit>

#include "jit/vector_ir.h"
#include "numerics/dlfloat16.h"

namespace spyre::card {
namespace {

constexpr uint32_t kUp = std::bit_cast<uint32_t>(0x1p96f);
constexpr uint32_t kDown = std::bit_cast<uint32_t>(0x1p-96f);
constexpr uint32_t kShiftedCode = 0x9fffc000;

}  // namespace

bool VectorCode::is_product_with(int value, uint32_t word) const {
  const VectorValue& v = values_[value];
  return v.op == VectorOp::MUL && is_constant(v.b) && values_[v.b].word == word;
}

// Whether it is a product of 2^96 with a code.
bool VectorCode::is_decoded(int value) const {
  if (!is_product_with(value, kUp)) return false;
  const VectorValue& shifted = values_[values_[value].a];
  return shifted.op == VectorOp::AND && is_constant(shifted.b) &&
         values_[shifted.b].word == kShiftedCode;
}

void VectorCode::fold_scaling() {
  std::vector<int> uses(values_.size());
  for (const VectorValue& v : values_) {
    for (int input : {v.a, v.b, v.c}) {
      if (input >= 0) uses[input]++;
    }
  }
  // Of what is the same in all groups the product is made once.
  const auto is_fixed = [&](int decoded) {
    const VectorValue& codes = values_[values_[values_[values_[decoded].a].a].a];
    return codes.op == VectorOp::LOAD_CODES && streams_[codes.word].fixed;
  };
  const auto becomes = [&](VectorValue& v, VectorOp op, int a, int b, int c) {
    v.op = op;
    v.imm = 0;
    v.a = a;
    v.b = b;
    v.c = c;
  };
  for (VectorValue& v : values_) {
    const int at = static_cast<int>(&v - values_.data());
    if (v.imm != 1 || !is_product_with(at, kDown) || uses[v.a] != 1) continue;
    const VectorValue sum = values_[v.a];
    const bool adds = sum.op == VectorOp::ADD;
    if (!adds && sum.op != VectorOp::SUB) continue;
    if (is_decoded(sum.b)) {
      becomes(v, adds ? VectorOp::FMA : VectorOp::FMS, sum.a, v.b, values_[sum.b].a);
    } else if (is_decoded(sum.a)) {
      becomes(v, adds ? VectorOp::FMA : VectorOp::FNMA, sum.b, v.b, values_[sum.a].a);
    }
  }
  drop_unused();
  uses.assign(values_.size(), 0);
  for (const VectorValue& v : values_) {
    for (int input : {v.a, v.b, v.c}) {
      if (input >= 0) uses[input]++;
    }
  }
  const auto folds = [&](int value) {
    if (uses[value] != 1) return false;
    const VectorValue& v = values_[value];
    return is_decoded(value) ? !is_fixed(value) : v.op == VectorOp::MUL && v.imm == 2;
  };
  for (VectorValue& v : values_) {
    const bool adds = v.op == VectorOp::ADD;
    if (!adds && v.op != VectorOp::SUB) continue;
    if (folds(v.a)) {
      const VectorValue product = values_[v.a];
      becomes(v, adds ? VectorOp::FMA : VectorOp::FMS, product.a, product.b, v.b);
    } else if (folds(v.b)) {
      const VectorValue product = values_[v.b];
      becomes(v, adds ? VectorOp::FMA : VectorOp::FNMA, product.a, product.b, v.a);
    }
  }
  drop_unused();
}

bool VectorCode::can_split() const {
  return std::none_of(values_.begin(), values_.end(), [](const VectorValue& v) {
    return v.op == VectorOp::LOAD_LANES || v.op == VectorOp::STORE_LANES ||
           (v.op == VectorOp::ADD_MOMENTS && v.imm == 0);
  });
}

// Codes that are shifted and then masked are loaded with what lies beside them.
void VectorCode::split() {
  split_ = true;
  const auto is_shifted = [&](const VectorValue& v) {
    return v.op == VectorOp::SHIFT_LEFT && v.imm == Dlfloat16::kShift &&
           values_[v.a].op == VectorOp::LOAD_CODES;
  };
  const auto is_mask = [&](int value) {
    return is_constant(value) && values_[value].word == kShiftedCode;
  };
  std::vector<bool> masked(values_.size(), true);
  for (const VectorValue& v : values_) {
    if (v.op == VectorOp::AND && is_mask(v.b)) continue;
    for (int input : {v.a, v.b, v.c}) {
      if (input >= 0) masked[input] = false;
    }
  }
  for (size_t i = 0; i < values_.size(); i++) {
    if (!masked[i] || !is_shifted(values_[i])) continue;
    values_[i] = values_[values_[i].a];
    values_[i].op = VectorOp::LOAD_SHIFTED;
  }
  drop_unused();
}

}  // namespace spyre::card
