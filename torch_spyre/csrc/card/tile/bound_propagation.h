// Bounds of what instructions compute from bounds of what they read; see tile/bounds.h.
#pragma once

#include "tile/bounds.h"
#include "tile/kernels.h"

namespace spyre::card {

// Numbers with 9 fraction bits, a the larger one: if less than half of a is left, b is more than
// half of it and its last bit is at least a / 2^11. What is left is a multiple of that bit, or
// zero.
inline Bounds sum_of(const Bounds& a, const Bounds& b) {
  const float cancelled = std::max(a.most == 0 ? 0 : a.least, b.most == 0 ? 0 : b.least) * 0x1p-11f;
  const bool coarse = a.coarse && b.coarse;
  const bool alone = a.most == 0 || b.most == 0;  // nothing to cancel with
  const float least = std::min(a.least, b.least);
  return {alone ? least : coarse ? std::min(least, cancelled) : 0.0f, a.most + b.most, true, false};
}

inline Bounds quotient_of(const Bounds& a, const Bounds& b) {
  if (b.zeros) return {};
  return {a.least / b.most, a.most / b.least, a.zeros, false};
}

// Functions whose results get out of range with e^-|x| or e^|x|.
constexpr float kMostExponent = 20.0f;

// x times a factor that is `near` at least for |x| up to 1, and falls for negative x: there the
// result is not smaller than at the most negative x, and `far` is a bound for that.
inline Bounds gated(const Bounds& x, float limit, float near, float far) {
  if (!(x.most <= limit)) return {};
  return {x.most <= 1.0f ? x.least * near : std::min(x.least * near, far), x.most, x.zeros, false};
}

// Of the result of an instruction with these inputs; immediates are inputs as well. Opcodes that
// are not known give the widest bounds. Inlined: bounds that pass through memory would cost as much
// as a kernel.
[[gnu::always_inline]] inline Bounds bounds_of(int opcode, const Bounds& a, const Bounds& b) {
  switch (opcode) {
    case COPY:
    case ABS:
    case NEG:
      return a;
    case RELU:
      return {a.least, a.most, true, a.coarse};
    case MAXIMUM:
    case MINIMUM: {
      Bounds either = a;
      either.include(b);
      return either;
    }
    case ADD:
    case SUB:
    case ADD_CONSTANT:
      return sum_of(a, b);
    case MUL:
    case MUL_CONSTANT:
      return {a.least * b.least, a.most * b.most, a.zeros || b.zeros, false};
    case DIV:
      return quotient_of(a, b);
    case RECIPROCAL:
      return quotient_of({1.0f, 1.0f, false, true}, a);
    case SHORT_EXP:
      if (!(a.most <= kMostExponent)) return {};
      return {std::exp(-a.most) * 0.99f, std::exp(a.most) * 1.01f, false, false};
    case SHORT_SIGMOID:
      if (!(a.most <= kMostExponent)) return {};
      return {std::exp(-a.most) * 0.49f, 1.0f, false, false};
    case SHORT_TANH:
      if (!(a.most <= 0x1p32f)) return {};
      return {std::min(a.least, 1.0f) * 0.75f, 1.0f, a.zeros, false};
    case SHORT_SILU:
      return gated(a, 16.0f, 0.2f, 0.5f * a.most * std::exp(-a.most));
    case SHORT_GELU_ERF:
    case SHORT_GELU_TANH:
      return gated(a, 5.5f, 0.15f, 0.02f * std::exp(-0.5f * a.most * a.most));  // of both forms
    default:
      return {};
  }
}

}  // namespace spyre::card
