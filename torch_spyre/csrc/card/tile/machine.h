// What happens inside of a tile: where the operands of its groups are, loads, stores, instructions.
//
// Tile programs (tile/tile.h) run on it, and so do the epilogues of matrix products. A tile is made
// of runs of groups; its registers are rows of 32-bit lanes, group after group.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "tile/tile.h"

namespace spyre::card {

// Of the JIT.
class CompiledVectors;
class SpecialisedCode;
struct Workspace;

// What the places of a tile share.
struct Machine {
  const TileStep& step;
  const RunContext& context;
  const TileTable& table;
  const ConvertTable& convert;
  std::vector<std::byte*> bases;  // core * operands + operand
  bool translated = false;        // machine code is used where there is some
  uint64_t run = 0;               // its number, so that threads know what they have seen of it

  std::byte* base(int core, int operand) const {
    return bases[core * step.operands.size() + operand];
  }
};

// Groups that lie one inner step apart for every operand.
struct TileRun {
  int64_t count = 0;
  int64_t stick = 0;  // index along the stick dim of the first one
  int64_t offsets[kMaxTileOperands];

  void copy_to(TileRun& other, size_t operands) const {
    std::memcpy(&other, this, offsetof(TileRun, offsets) + operands * sizeof(int64_t));
  }
};

// A tile is made of runs; in a reduction each run appears once for each reduced point.
struct Part {
  const TileRun* run;
  const TileRun*
      reduced;  // offsets to add, and the stick index if the stick dim is reduced; or null
};

struct TileView {
  const Machine& machine;
  const TileWalk& walk;
  int core;
  std::span<const Part> parts;
  int64_t lanes = 0;
  int64_t kept_lanes = 0;    // of the kept points: what SPREAD repeats
  bool whole_block = false;  // all points of a block of kept points
  uint32_t still = 0;        // bit by register: the same in all groups, of which the first is there
};

// What a reduction has gathered for the kept points of a tile, by lane; of EXX2, where lanes are
// reduced, kMomentParts of each group.
struct TotalsAt {
  uint32_t* lanes;
  double *sums, *squares;
};

// One part of a tile in one operand: groups `stride` bytes apart.
struct Place {
  std::byte* at;
  int64_t stride;
  int64_t count;
  int64_t left;       // sticks that exist from the first group on
  int64_t left_step;  // how many fewer there are at each further group
};
Place place_of(const TileView& tile, const Part& part, int operand);

// Goes over the points of dimensions; the offset of every operand at hand.
class Odometer {
 public:
  Odometer(const std::vector<TileDim>& dims, size_t operands, bool inner_runs)
      : dims_(dims), operands_(operands), outer_(dims.size() - (inner_runs ? 1 : 0)) {}

  // To a point, counted with the last dimension fastest.
  void seek(int64_t point) {
    std::fill_n(run_.offsets, operands_, 0);
    run_.stick = 0;
    inner_ = 0;
    for (size_t d = dims_.size(); d-- > 0;) {
      const int64_t index = point % dims_[d].extent;
      point /= dims_[d].extent;
      if (d >= outer_) {
        inner_ = index;
      } else {
        index_[d] = index;
      }
      move(dims_[d], index);
    }
  }
  // Takes up to `most` points of the last dimension.
  void take(int64_t most, TileRun& run) {
    const TileDim& inner = dims_.back();
    run_.copy_to(run, operands_);
    run.count = std::min(most, inner.extent - inner_);
    inner_ += run.count;
    move(inner, run.count);
    if (inner_ == inner.extent) {
      move(inner, -inner.extent);
      inner_ = 0;
      step();
    }
  }
  void here(TileRun& run) const { run_.copy_to(run, operands_); }
  void step() {
    for (size_t d = outer_; d-- > 0;) {
      move(dims_[d], 1);
      if (++index_[d] < dims_[d].extent) return;
      move(dims_[d], -dims_[d].extent);
      index_[d] = 0;
    }
  }

 private:
  void move(const TileDim& dim, int64_t by) {
    if (by == 0) return;
    for (size_t i = 0; i < operands_; i++) run_.offsets[i] += by * dim.strides[i];
    if (dim.stick) run_.stick += by;
  }

  const std::vector<TileDim>& dims_;
  size_t operands_;
  size_t outer_;  // dimensions that index_ counts
  int64_t index_[kMaxTileDims] = {};
  int64_t inner_ = 0;
  TileRun run_;
};

// A list of instructions as machine code. The JIT makes it (jit/specialisations.h).
class TileCode {
 public:
  virtual ~TileCode() = default;
  // Whether all tiles of a step can be run: no operand ends inside of one.
  virtual bool runs_everywhere(const Machine& machine) const = 0;
  // False when this tile has to be interpreted; nothing has been done then. `totals` are those of
  // the reductions.
  virtual bool run(const TileView& tile, Workspace& space,
                   std::span<const TotalsAt> totals) const = 0;
  virtual bool reduces() const = 0;
  virtual bool has_lasting() const = 0;  // it leaves registers to later phases
};

constexpr int kMaxGroups = kLongTileLanes / 32;  // of a tile

struct alignas(64) Workspace {
  Workspace() { use_lanes(); }
  void use_lanes() {
    for (int r = 0; r < kTileRegisters; r++) registers[r] = lanes[r];
    bounds = lane_bounds;
  }
  void use_results() {
    for (int r = 0; r < kTileRegisters; r++) registers[r] = results[r];
    bounds = result_bounds;
  }

  // Those that instructions work on, and what is known of them.
  uint32_t* registers[kTileRegisters];
  Bounds* bounds;
  alignas(64) uint32_t lanes[kTileRegisters][kTileLanes + 32];    // of bodies
  alignas(64) uint32_t results[kTileRegisters][kTileLanes + 32];  // of epilogues
  alignas(64) uint32_t second[kTileLanes];  // of the second input, where it is an operand
  alignas(64) uint32_t third[kMaxLanes];    // of that of the second instruction of a pair
  Bounds lane_bounds[kTileRegisters], result_bounds[kTileRegisters];
  // Of operands, where they have been found for all points of a block: phases read them again.
  Bounds operand_bounds[kMaxTileOperands];
  uint32_t operands_known = 0;  // bit by operand
  // Of operands in an earlier tile of the same run: what machine code may expect, and checks.
  Bounds operand_assumptions[kMaxTileOperands];
  uint32_t operands_assumed = 0;  // bit by operand
  // Bounds that a code has seen, of which the next tile, if there is one, makes assumptions.
  Bounds operands_seen[kMaxTileOperands];
  const SpecialisedCode* seen_by = nullptr;
  // The code that stays ordinary with these assumptions in all tiles, if it is known.
  const TileCode* assured = nullptr;
  const CompiledVectors* assured_code = nullptr;  // the form that it has then
  // Of operands that are the same in all blocks of a task.
  Bounds fixed_bounds[kMaxTileOperands];
  uint32_t fixed_known = 0;    // bit by operand
  TileRun runs[kMaxGroups];    // of the kept points of a tile
  TileRun points[kMaxGroups];  // reduced points of a tile
  // Of machine code: where its streams begin in the parts of a tile, values of operands of one.
  std::vector<int64_t> starts;
  std::vector<uint32_t> splats;
};

void run_instructions(const std::vector<TileInstruction>& instructions, const TileView& tile,
                      Workspace& space);
// The same by machine code, where the machine uses it and there is some for this tile.
void run_instructions(const std::shared_ptr<const TileCode>& code,
                      const std::vector<TileInstruction>& instructions, const TileView& tile,
                      Workspace& space);
// The same for an epilogue that is compact (TileStep::compact).
void run_compact(const std::vector<TileInstruction>& instructions, const TileView& tile,
                 Workspace& space);

}  // namespace spyre::card
