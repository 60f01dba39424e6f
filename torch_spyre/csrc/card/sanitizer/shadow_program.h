// A device program as the sanitizer reads it: for each step what every core loads and stores, as
// the words say it.
//
// The card's own steps are made for speed: cores are merged, instructions folded. What is checked
// here must not depend on that, so the words are read once more, plainly. In: the bytes of a
// program that parse_program has accepted. Out: steps with the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "matmul/matmul.h"
#include "memory/address_map.h"
#include "program/copy_step.h"
#include "program/gather.h"
#include "program/ring.h"
#include "program/topk.h"
#include "sanitizer/copy_sums.h"
#include "sanitizer/shadow.h"
#include "step/steps.h"
#include "tile/kernels.h"
#include "tile/operand.h"

namespace spyre::card {

struct ShadowInstruction {
  int opcode = 0;
  int destination = -1, a = -1, b = -1, c = -1;
  // Of arithmetic: how many registers it reads, whether their order counts, and what it is.
  int inputs = 0;
  bool commutes = false;
  uint64_t tag = 0;
};

struct ShadowReduction {
  ReduceOp op = ReduceOp::SUM;
  int source = 0, destination = 0;
};

struct ShadowPhase {
  std::vector<ShadowInstruction> body;
  std::vector<ShadowReduction> reductions;
  std::vector<ShadowInstruction> epilogue;
};

struct ShadowTile {
  int lanes = 0, kept = 0, reduced = 0, stick_dim = -1;
  std::vector<int64_t> extents;  // cores x dims
  std::vector<Bits> tails;       // by core
  std::vector<TileOperand> operands;
  bool reduces_lanes = false;
  std::vector<std::vector<int>> teams;
  std::vector<ShadowPhase> phases;

  int dims() const { return kept + reduced; }
  const int64_t* extents_of(int core) const { return extents.data() + core * dims(); }
};

struct ShadowMatmul {
  struct Side {
    DataFormat format = DataFormat::INVALID;
    std::vector<int64_t> strides;  // batch, rows, sticks
    OperandAddress address;
  };
  int batch = 0;
  std::vector<int64_t> extents;  // cores x (batch + 3): batch, M, N, K
  Side x, y;
  std::vector<TileOperand> results;  // out, then what the epilogue uses; strides as those of a side
  std::vector<std::vector<int>> teams;
  std::vector<ShadowInstruction> epilogue;
  std::optional<MatmulStep::Choice> choice;  // of y by rows; its address comes last

  const int64_t* extents_of(int core) const { return extents.data() + core * (batch + 3); }
};

struct ShadowCopy {
  struct Side {
    AddressMap map;
    int64_t elem_bytes = 0;
    std::vector<View> views;  // by core
    OperandAddress address;
  };
  Side source, destination;
  // What is known after it ran once: later runs go stick by stick.
  std::shared_ptr<CopySums> sums = std::make_shared<CopySums>();
};

struct ShadowLoop {
  int64_t count = 0;
  size_t end = 0;  // the first step after it
};

struct ShadowStep {
  StepHead head;
  std::variant<ShadowLoop, ShadowTile, ShadowMatmul, ShadowCopy, GatherStep, TopkStep, RingStep>
      what;
};

struct ShadowProgram {
  std::vector<ShadowStep> steps;  // a loop is followed by what it repeats, as in ParsedProgram
  // Whether what it touches is decided by its words and arguments, and by no value in memory.
  bool is_decided = true;
};

std::shared_ptr<const ShadowProgram> parse_shadow(std::span<const std::byte> program);

// Addresses of all operands, in the order of the words.
std::vector<const OperandAddress*> addresses_of(const ShadowStep& step);

// Numbers of those that it writes to.
std::vector<int> written_by(const ShadowStep& step);

}  // namespace spyre::card
