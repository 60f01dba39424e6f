// What is known of the magnitudes in a register, so that rounding need not look for numbers that
// DLFloat16 does not have.
//
// In: bounds of what an instruction reads. Out: bounds of its result, before it is rounded. Where
// they stay inside of the format's range, rounding is an addition and a mask; elsewhere kernels
// look at every lane. Bounds may be wider than the truth, never narrower.
//
// Example: bounds_of(MUL, {0.5f, 2}, {0.25f, 1}) is {0.125f, 2}, which keeps_in_range().
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "numerics/dlfloat16.h"

namespace spyre::card {

struct Bounds {
  // No lane that is not zero is smaller, none is larger; as magnitudes. NaN counts as infinity.
  float least = 0.0f;
  float most = std::numeric_limits<float>::infinity();
  bool zeros = true;    // there may be lanes of zero
  bool coarse = false;  // lanes have no more fraction bits than DLFloat16, or are special

  // Neither a lane nor what it is rounded to leaves the range of DLFloat16; with some room, since
  // bounds themselves are computed in float32.
  bool keeps_in_range() const { return least >= 0x1p-30f && keeps_below_limit(); }
  bool keeps_below_limit() const { return most <= 0x1p32f; }

  void include(const Bounds& other) {
    least = std::min(least, other.least);
    most = std::max(most, other.most);
    zeros = zeros || other.zeros;
    coarse = coarse && other.coarse;
  }
  // After rounding to DLFloat16, which moves a number by a thousandth at most.
  Bounds rounded() const { return {least * 0.99f, most * 1.01f, zeros, true}; }

  // Nothing: what others are included in.
  static constexpr Bounds none() { return {std::numeric_limits<float>::max(), 0.0f, false, true}; }
  static Bounds of(uint32_t lane) {
    const float magnitude = std::fabs(std::bit_cast<float>(lane));
    if (magnitude == 0.0f) return {std::numeric_limits<float>::max(), 0.0f, true, true};
    const bool coarse = (lane & ((1u << Dlfloat16::kShift) - 1)) == 0;
    if (!(magnitude <= std::numeric_limits<float>::max())) return {0.0f, kInfinity, true, coarse};
    return {magnitude, magnitude, false, coarse};
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
};

}  // namespace spyre::card
