// Gathers of sticks (step kind 4): out[p] = value[p, index[p]], one stick for each point; and the
// other way round, scatters (step kind 8): out[p, index[p]] = value[p].
#pragma once

#include <cstdint>
#include <vector>

#include "step/steps.h"

namespace spyre::card {

struct GatherStep {
  struct Operand {
    std::vector<int64_t> strides;  // bytes by dimension
    OperandAddress address;
  };

  int dims = 0;
  std::vector<int64_t> extents;  // cores x dims
  int64_t rows = 0;
  int64_t row_stride = 0;
  Operand value, index, out;
  int stick_dim = -1;  // dimension along which indices are neighbours in a stick, or -1
  int64_t stick_stride = 0;
  std::vector<int64_t> first_index;  // by core, along stick_dim
  bool scatters = false;             // the index chooses rows of out, not of value
};

GatherStep parse_gather(WordReader& reader, const StepHead& head);
GatherStep parse_scatter(WordReader& reader, const StepHead& head);
// Throws std::runtime_error for an index out of bounds.
void run_gather(const GatherStep& step, const StepHead& head, const RunContext& context);

}  // namespace spyre::card
