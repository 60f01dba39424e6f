#include "jit/vector_ir.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace spyre::card {
namespace {

bool has_effect(VectorOp op) { return op >= VectorOp::STORE_LANES && op <= VectorOp::GUARD_CODES; }

}  // namespace

bool is_mask(VectorOp op) {
  switch (op) {
    case VectorOp::COMPARE:
    case VectorOp::INT_COMPARE:
    case VectorOp::UINT_COMPARE:
    case VectorOp::TEST:
    case VectorOp::IS_SUBNORMAL:
    case VectorOp::MASK_AND:
    case VectorOp::MASK_OR:
    case VectorOp::MASK_NOT:
      return true;
    default:
      return false;
  }
}

int VectorCode::add(const VectorValue& v) {
  const bool loads = v.op >= VectorOp::LOAD_CODES && v.op <= VectorOp::LOAD_SPLAT;
  const Key key{v.op, v.imm, v.a, v.b, v.c, v.word, v.half, loads ? stores_ : 0};
  const auto [at, is_new] = known_.try_emplace(key, static_cast<int>(values_.size()));
  if (is_new) values_.push_back(v);
  return at->second;
}

int VectorCode::constant(uint32_t word) {
  VectorValue v;
  v.word = word;
  return add(v);
}

// The few operations that recorded functions apply to constants.
bool VectorCode::fold(VectorOp op, int a, int b, int imm, uint32_t& word) const {
  if (a < 0 || !is_constant(a) || (b >= 0 && !is_constant(b))) return false;
  const uint32_t x = values_[a].word, y = b < 0 ? 0 : values_[b].word;
  const auto f = [](uint32_t bits) { return std::bit_cast<float>(bits); };
  switch (op) {
    case VectorOp::ADD:
      word = std::bit_cast<uint32_t>(f(x) + f(y));
      return true;
    case VectorOp::SUB:
      word = std::bit_cast<uint32_t>(f(x) - f(y));
      return true;
    case VectorOp::MUL:
      word = std::bit_cast<uint32_t>(f(x) * f(y));
      return true;
    case VectorOp::INT_ADD:
      word = x + y;
      return true;
    case VectorOp::INT_SUB:
      word = x - y;
      return true;
    case VectorOp::AND:
      word = x & y;
      return true;
    case VectorOp::OR:
      word = x | y;
      return true;
    case VectorOp::XOR:
      word = x ^ y;
      return true;
    case VectorOp::SHIFT_LEFT:
      word = x << imm;
      return true;
    default:
      return false;
  }
}

int VectorCode::make(VectorOp op, int a, int b, int c, int imm) {
  uint32_t word = 0;
  if (c < 0 && fold(op, a, b, imm, word)) return constant(word);
  VectorValue v;
  v.op = op;
  v.imm = static_cast<uint8_t>(imm);
  v.a = a;
  v.b = b;
  v.c = c;
  return add(v);
}

int VectorCode::load(VectorOp op, int stream, int half) {
  VectorValue v;
  v.op = op;
  v.word = static_cast<uint32_t>(stream);
  v.half = half;
  return add(v);
}

void VectorCode::mark_exact(int product) {
  VectorValue& v = values_[product];
  if (v.op == VectorOp::MUL && v.imm == 0) v.imm = 2;
}

void VectorCode::store(VectorOp op, int stream, int half, int a, int b) {
  VectorValue v;
  v.op = op;
  v.a = a;
  v.b = b;
  v.word = static_cast<uint32_t>(stream);
  v.half = half;
  values_.push_back(v);
  stores_++;
}

void VectorCode::add_moments(int sums, int squares, int a, int b, bool few_bits) {
  VectorValue v;
  v.op = VectorOp::ADD_MOMENTS;
  v.imm = few_bits ? 1 : 0;
  v.a = a;
  v.b = b;
  v.word = static_cast<uint32_t>(sums);
  v.second = squares;
  values_.push_back(v);
  stores_++;
}

void VectorCode::guard(int mask, int other) {
  VectorValue v;
  v.op = VectorOp::GUARD;
  v.a = mask;
  v.b = other;
  values_.push_back(v);
}

void VectorCode::guard_codes(int stream, int limits, bool fetches) {
  VectorValue v;
  v.op = VectorOp::GUARD_CODES;
  v.imm = fetches ? 1 : 0;
  v.word = static_cast<uint32_t>(stream);
  v.second = limits;
  values_.push_back(v);
}

// Stores and guards stay where they are, and everything between two of them between them.
void VectorCode::alternate() {
  std::vector<int> depth(values_.size()), order;
  const auto deeper = [&](int x, int y) { return depth[x] < depth[y]; };
  std::ptrdiff_t begin = 0;  // in `order`, of what follows the last effect
  for (std::size_t i = 0; i < values_.size(); i++) {
    const VectorValue& v = values_[i];
    for (int input : {v.a, v.b, v.c}) {
      if (input >= 0) depth[i] = std::max(depth[i], depth[input] + 1);
    }
    if (has_effect(v.op)) std::stable_sort(order.begin() + begin, order.end(), deeper);
    order.push_back(static_cast<int>(i));
    if (has_effect(v.op)) begin = static_cast<std::ptrdiff_t>(order.size());
  }
  rearrange(order);
}

void VectorCode::drop_unused() {
  std::vector<bool> used(values_.size());
  for (std::size_t i = values_.size(); i-- > 0;) {
    const VectorValue& v = values_[i];
    if (!used[i] && !has_effect(v.op)) continue;
    used[i] = true;
    for (int input : {v.a, v.b, v.c}) {
      if (input >= 0) used[input] = true;
    }
  }
  std::vector<int> order;
  for (std::size_t i = 0; i < values_.size(); i++) {
    if (used[i]) order.push_back(static_cast<int>(i));
  }
  rearrange(order);
}

void VectorCode::rearrange(const std::vector<int>& order) {
  std::vector<int> now(values_.size(), -1);
  std::vector<VectorValue> kept;
  for (int at : order) {
    now[at] = static_cast<int>(kept.size());
    VectorValue v = values_[at];
    for (int* input : {&v.a, &v.b, &v.c}) {
      if (*input >= 0) *input = now[*input];
    }
    kept.push_back(v);
  }
  values_ = std::move(kept);
  known_.clear();
}

}  // namespace spyre::card
