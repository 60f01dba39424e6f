#include "jit/compile_tile.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "jit/specialisations.h"

namespace spyre::card {
namespace {

// Whether a body begins with what an earlier phase left in a register.
bool reads_at_entry(const TilePhase& phase, int reg) {
  for (const TileInstruction& in : phase.body) {
    const bool registers = in.b_is == SecondInput::REGISTER;
    const bool third = registers || (!in.is_pair() && inputs_of(in.opcode) > 2);
    if (in.opcode != LOAD && in.opcode != SPREAD && in.a == reg) return true;
    if ((registers && in.b == reg) || (third && in.c == reg)) return true;
    if (in.opcode != STORE && in.destination == reg) return false;
  }
  return std::any_of(phase.reductions.begin(), phase.reductions.end(),
                     [&](const TileReduction& r) { return r.source == reg; });
}
// The instruction that leaves something in a register, or nothing.
const TileInstruction* last_write(const TilePhase& phase, int reg) {
  const auto at = std::find_if(
      phase.body.rbegin(), phase.body.rend(),
      [&](const TileInstruction& in) { return in.opcode != STORE && in.destination == reg; });
  return at == phase.body.rend() ? nullptr : &*at;
}
// Whether a phase after this one reads what this one leaves in a register.
bool lasts(const TileStep& step, size_t phase, int reg) {
  for (size_t i = phase + 1; i < step.phases.size(); i++) {
    if (reads_at_entry(step.phases[i], reg)) return true;
    if (last_write(step.phases[i], reg) != nullptr) return false;
  }
  return false;
}

// What a later phase would find in a register that was loaded, it loads again: codes are half as
// long, and machine code decodes them in passing.
void load_again(TileStep& step) {
  const auto stores = [](const TilePhase& phase) {
    const auto is_store = [](const TileInstruction& in) { return in.opcode == STORE; };
    return std::any_of(phase.body.begin(), phase.body.end(), is_store) ||
           std::any_of(phase.epilogue.begin(), phase.epilogue.end(), is_store);
  };
  if (std::any_of(step.phases.begin(), step.phases.end() - 1, stores)) return;
  const auto can_again = [&](const TileInstruction& in) {
    if (in.opcode != LOAD) return false;
    const TileOperand& operand = step.operands[in.a];
    return operand.form == OperandForm::VECTOR && operand.format == DataFormat::SEN169_FP16 &&
           is_unlimited(operand);
  };
  for (int reg : step.kept_on) {
    const TileInstruction* written = nullptr;
    for (TilePhase& phase : step.phases) {
      if (written != nullptr && can_again(*written) && reads_at_entry(phase, reg)) {
        phase.body.insert(phase.body.begin(), TileInstruction(*written));
      }
      if (const TileInstruction* last = last_write(phase, reg)) written = last;
    }
  }
  std::erase_if(step.kept_on, [&](int reg) {
    return std::none_of(step.phases.begin(), step.phases.end(),
                        [&](const TilePhase& phase) { return reads_at_entry(phase, reg); });
  });
}

// With its reductions, where no lanes are left out of them.
void translate(const TileStep& step, TilePhase& phase) {
  const bool tails =
      step.reduce_lanes && std::any_of(step.tails.begin(), step.tails.end(),
                                       [](const auto& tail) { return !tail.empty(); });
  const bool folds = std::all_of(phase.reductions.begin(), phase.reductions.end(), [&](auto& r) {
    return r.op != ReduceOp::EXX2 || step.reduce_lanes;
  });
  std::vector<int> lasting;
  const auto number = static_cast<size_t>(&phase - step.phases.data());
  std::copy_if(step.kept_on.begin(), step.kept_on.end(), std::back_inserter(lasting),
               [&](int reg) { return lasts(step, number, reg); });
  if (folds && !tails) {
    phase.code = SpecialisedCode::translate(step, phase.body, std::move(lasting), phase.reductions);
    return;
  }
  for (const TileReduction& reduction : phase.reductions) lasting.push_back(reduction.source);
  phase.code = SpecialisedCode::translate(step, phase.body, std::move(lasting), {});
}

}  // namespace

void compile_tile(TileStep& step) {
  if (!has_vector_compiler()) return;
  load_again(step);
  for (TilePhase& phase : step.phases) translate(step, phase);
}

}  // namespace spyre::card
