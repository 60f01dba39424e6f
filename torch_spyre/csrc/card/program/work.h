// The work of an operation (kind 9): where its operands lie and which places all cores visit. It
// stands before the step that runs the operation. docs/formats/program.md has the words.
#pragma once

#include "program/counters.h"
#include "step/steps.h"

namespace spyre::card {

// What one run of the operation moves.
Totals parse_work(WordReader& reader, const StepHead& head);

}  // namespace spyre::card
