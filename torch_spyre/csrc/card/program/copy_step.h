// Copies between two placements (step kind 3), element by element.
//
// Parsing works out the addresses of both storages and joins the views of neighbouring cores where
// they make up a larger box, so that usually one copy is left whatever the number of cores.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/transfer.h"
#include "step/steps.h"

namespace spyre::card {

struct CopyStep {
  struct Side {
    Placement placement;
    AddressMap map;
    int64_t elem_bytes = 0;
    OperandAddress address;
  };
  // One copy; several cores whose views are neighbours share it. Addresses are those of `core`.
  struct Part {
    int core = 0;
    View source, destination;
  };

  Side source, destination;
  std::vector<Part> parts;
};

CopyStep parse_copy(WordReader& reader, const StepHead& head);
void run_copy(const CopyStep& step, const StepHead& head, const RunContext& context);

}  // namespace spyre::card
