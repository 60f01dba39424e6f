// Moves between scratchpads over the ring (step kind 10): boxes of sticks from core to core.
#pragma once

#include <cstdint>
#include <vector>

#include "step/steps.h"

namespace spyre::card {

struct RingStep {
  struct Axis {
    int64_t extent = 0, source_stride = 0, target_stride = 0;
  };
  struct Transfer {
    int source = 0, target = 0;  // cores
    int64_t source_offset = 0, target_offset = 0;
  };
  std::vector<Axis> axes;  // of the box that each transfer moves, outermost first
  OperandAddress source, target;
  std::vector<Transfer> transfers;

  int64_t sticks() const {
    int64_t count = 1;
    for (const Axis& axis : axes) count *= axis.extent;
    return count;
  }
  // Bytes from where a box begins to its nth stick, in the source and in the target.
  std::pair<int64_t, int64_t> stick(int64_t number) const {
    int64_t from = 0, to = 0;
    for (size_t i = axes.size(); i-- > 0;) {
      const int64_t at = number % axes[i].extent;
      number /= axes[i].extent;
      from += at * axes[i].source_stride;
      to += at * axes[i].target_stride;
    }
    return {from, to};
  }
};

RingStep parse_ring(WordReader& reader, const StepHead& head);
void run_ring(const RingStep& step, const StepHead& head, const RunContext& context);

}  // namespace spyre::card
