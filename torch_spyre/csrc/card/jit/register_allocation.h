// What a compiler of vector code hands out: registers, places of constants, and the values that
// stay in registers because they are the same in all groups.
//
// Example: FreeRegisters zmm(0, 32); const int reg = zmm.take(); ... zmm.give(reg);
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "jit/vector_ir.h"

namespace spyre::card {

constexpr int kLanesOfIteration = 32;

struct OutOfRegisters {};

// Numbers that are free, the smallest first.
class FreeRegisters {
 public:
  FreeRegisters(int first, int last) {
    for (int i = last; i-- > first;) free_.push_back(i);
  }
  int take() {
    if (free_.empty()) throw OutOfRegisters{};
    const auto least = std::min_element(free_.begin(), free_.end());
    const int reg = *least;
    free_.erase(least);
    highest_ = std::max(highest_, reg);
    return reg;
  }
  void give(int reg) { free_.push_back(reg); }
  int highest() const { return highest_; }

 private:
  std::vector<int> free_;
  int highest_ = -1;
};

// The words of constants, each once; vectors of words first, since they must be aligned.
class ConstantPool {
 public:
  int offset_of(uint32_t word) {
    const auto [at, is_new] = offsets_.try_emplace(word, static_cast<int>(words_.size()) * 4);
    if (is_new) words_.push_back(word);
    return at->second;
  }
  // Word numbers that take the upper halves of 32 lanes.
  explicit ConstantPool(bool split) {
    for (uint32_t i = 0; i < 16; i++) {
      words_.push_back(split ? (2 * i + 1) | (2 * i + 33) << 16 : (4 * i + 1) | (4 * i + 3) << 16);
    }
    for (uint32_t first : {0, 1}) {
      for (uint32_t i = 0; i < 16; i++) words_.push_back(2 * i + first);
    }
  }
  static constexpr int kUpperHalves = 0;
  // Numbers of even and odd lanes.
  static constexpr int every_other(int first) { return 64 + 64 * first; }
  const std::vector<uint32_t>& words() const { return words_; }

 private:
  std::vector<uint32_t> words_;
  std::map<uint32_t, int> offsets_;
};

// Values of code that are the same in all groups: made of fixed streams and constants.
struct FixedValues {
  std::vector<bool> is_fixed;  // by value; not of constants
  std::vector<int> used;       // those that others need

  int registers(int lanes) const {
    return static_cast<int>(used.size()) * (lanes / kLanesOfIteration);
  }
  static FixedValues none(const VectorCode& code) {
    return {std::vector<bool>(code.values().size()), {}};
  }
  static FixedValues of(const VectorCode& code) {
    FixedValues fixed = none(code);
    const std::vector<VectorValue>& values = code.values();
    std::vector<bool> is_used(values.size());
    for (size_t i = 0; i < values.size(); i++) {
      const VectorValue& v = values[i];
      bool some = false, all = true;
      for (int input : {v.a, v.b, v.c}) {
        if (input < 0 || code.is_constant(input)) continue;
        some = some || fixed.is_fixed[input];
        all = all && fixed.is_fixed[input];
      }
      const bool loads = v.op == VectorOp::LOAD_CODES || v.op == VectorOp::LOAD_SHIFTED ||
                         v.op == VectorOp::LOAD_LANES;
      const bool computes = v.op >= VectorOp::ADD && v.op <= VectorOp::TAKE_BITS;
      fixed.is_fixed[i] = loads ? code.streams()[v.word].fixed : computes && some && all;
      for (int input : {v.a, v.b, v.c}) {
        if (input >= 0 && fixed.is_fixed[input] && !fixed.is_fixed[i]) is_used[input] = true;
      }
    }
    for (size_t i = 0; i < values.size(); i++) {
      if (is_used[i]) fixed.used.push_back(static_cast<int>(i));
    }
    return fixed;
  }
};

}  // namespace spyre::card
