// Tile programs (step kind 1): chains of pointwise operations, and reductions with what precedes
// and follows them. docs/formats/program.md has the words.
//
// A program runs on tiles of about 1024 lanes: many groups at a time, so that interpreting it costs
// nothing. Kept dimensions are visited in the order that suits memory; reduced ones in the
// order of the program. Results depend neither on the number of threads nor on the tiles.
//
// Example: TileStep step = parse_tile(reader, head); compile_tile(step);  // jit/compile_tile.h
// run_tile(step, head, context);
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "numerics/convert.h"
#include "step/steps.h"
#include "tile/kernels.h"
#include "tile/operand.h"

namespace spyre::card {

class TileCode;

constexpr int kTileLanes = 1024;
constexpr int kLongTileLanes = 4096;  // where machine code does without registers in memory
constexpr int kCompactLanes = 8;
constexpr int kTileRegisters = 32;
constexpr int kMaxTileOperands = 32;
constexpr int64_t kMaxTileDims = 16;

// Where the second input of an instruction is: in a register, or, an instruction saved, one value
// for each group of lanes among the results, one value for all in a stick that stays where it is,
// an operand that may have the same lanes for many groups.
enum class SecondInput : int8_t { REGISTER, RESULT, STILL_OPERAND, OPERAND };

struct TileInstruction {
  int opcode = 0;
  int destination = -1;        // STORE: number of the operand
  int a = -1, b = -1, c = -1;  // LOAD: a is the number of the operand
  uint32_t imm0 = 0, imm1 = 0;
  DataFormat format = DataFormat::IEEE_FP32;  // ROUND
  bool then_round = false;  // the result is rounded to SEN169_FP16: an instruction saved
  SecondInput b_is = SecondInput::REGISTER;
  // A second instruction on the result, with c as second input of the same kind: one pass saved.
  int then_opcode = kNoOpcode;

  static constexpr int kNoOpcode = -1;
  bool is_pair() const { return then_opcode != kNoOpcode; }
};

// How a group of a VECTOR operand is made of sticks.
struct GroupShape {
  int per_stick = 64;  // lanes of a stick
  int sticks = 1;      // of a group
  bool whole = true;   // its sticks are adjacent
};

struct TileReduction {
  ReduceOp op = ReduceOp::SUM;
  bool few_bits = false;  // EXX2 of numbers with the bits of DLFloat16: see add_short_moments
  int source = 0, destination = 0;
};

// The body runs at every point; its reductions leave one group of lanes for each kept point, on
// which the epilogue runs. What the body has in its registers is there for the next phase, and so
// are the registers of the epilogue, which are others.
struct TilePhase {
  std::vector<TileInstruction> body;
  std::vector<TileReduction> reductions;
  std::vector<TileInstruction> epilogue;
  std::vector<int> spread;  // results of this phase that bodies of later ones read, value by value
  std::shared_ptr<const TileCode> code;  // the body as machine code, or nothing
};

// A dimension as it is walked, with the strides of all operands.
struct TileDim {
  int64_t extent = 1;
  bool stick = false;  // it counts groups along the sticks
  std::vector<int64_t> strides;
};

// How a core walks its points; cores with the same extents share one.
struct TileWalk {
  std::vector<TileDim> kept;     // outermost first; the last is that of the tiles
  std::vector<TileDim> reduced;  // outermost first
  int64_t kept_points = 1, reduced_points = 1;
  int64_t stick_extent = 1;
};

// Cores that hold partial results of the same outputs; one core when there are no groups.
struct TileTeam {
  std::vector<int> cores;  // in order; the first goes on with the results
};

struct TileStep {
  int lanes = 64;  // of a group
  int kept_dims = 0, reduced_dims = 0;
  int stick_dim = -1;
  std::vector<TileOperand> operands;
  std::vector<GroupShape> shapes;  // by operand
  std::vector<TilePhase> phases;   // one at least; all but the last have reductions
  bool reduce_lanes = false;
  std::vector<int> kept_on;  // registers of bodies that a later phase reads

  // Results are the same in every lane, and nothing stores what is not: epilogues work on
  // kCompactLanes for each kept point instead of a group.
  bool compact = false;

  bool reduces() const { return !phases[0].reductions.empty(); }
  int result_lanes() const { return compact ? kCompactLanes : lanes; }

  std::vector<TileWalk> walks;
  std::vector<int> walk_of;  // by core
  std::vector<TileTeam> teams;
  std::vector<std::vector<uint32_t>> tails;  // by core: lane masks of the last group; empty: all
  int64_t elements = 0;                      // lanes of all points, for deciding on threads
};

TileStep parse_tile(WordReader& reader, const StepHead& head);
// Instructions on the operands of a step, with their number; registers that are `defined` have been
// written before.
std::vector<TileInstruction> parse_instructions(WordReader& reader, TileStep& step,
                                                std::initializer_list<int> defined);
void run_tile(const TileStep& step, const StepHead& head, const RunContext& context);
// Interpreted, with a given form of SIMD; for tests.
void run_tile(const TileStep& step, const StepHead& head, const RunContext& context, Simd simd);

}  // namespace spyre::card
