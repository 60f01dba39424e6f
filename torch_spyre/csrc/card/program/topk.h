// The k largest or smallest of a number of values in each lane (step kind 5), sorted.
//
// NaN counts as largest, equal values keep the order of their indices. Which values the k are is
// decided in float32, what is stored are the values or their indices.
#pragma once

#include <cstdint>
#include <vector>

#include "step/steps.h"
#include "tile/operand.h"

namespace spyre::card {

struct TopkStep {
  int lanes = 0;  // of a group
  int dims = 0;   // kept
  int stick_dim = -1;
  std::vector<int64_t> extents;  // cores x dims
  int64_t count = 0;             // values in each lane
  int64_t k = 0;
  bool largest = true;
  bool indices = false;  // what the output is
  TileOperand input, output;
};

TopkStep parse_topk(WordReader& reader, const StepHead& head);
void run_topk(const TopkStep& step, const StepHead& head, const RunContext& context);

}  // namespace spyre::card
