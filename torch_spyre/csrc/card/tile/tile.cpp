// Running tile programs: reductions, tiles, tasks. What happens inside of a tile is in
// tile/machine.h.
#include "tile/tile.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <memory>
#include <span>

#include "tile/machine.h"

namespace spyre::card {
namespace {

// ---- Reductions ----------------------------------------------------------------------

uint32_t identity_of(ReduceOp op) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  switch (op) {
    case ReduceOp::MAX:
      return std::bit_cast<uint32_t>(-kInfinity);
    case ReduceOp::MIN:
      return std::bit_cast<uint32_t>(kInfinity);
    case ReduceOp::PRODUCT:
      return std::bit_cast<uint32_t>(1.0f);
    default:
      return 0;
  }
}

// What one reduction has gathered for the kept points of a tile.
struct Totals {
  alignas(64) uint32_t lanes[kLongTileLanes];
  alignas(64) double sums[kLongTileLanes];  // EXX2 only, as are the following
  alignas(64) double squares[kLongTileLanes];
};

using SpareTotals = std::vector<std::unique_ptr<Totals>>;

// The reductions of one phase.
class Reducer {
 public:
  // Takes its totals from `spare`, of which phases that follow each other can have the same.
  Reducer(const Machine& machine, const TilePhase& phase, SpareTotals& spare)
      : step_(machine.step), numerics_(machine.context.numerics), reductions_(phase.reductions) {
    while (spare.size() < 2 * reductions_.size()) {
      spare.push_back(std::make_unique_for_overwrite<Totals>());
    }
    for (size_t i = 0; i < reductions_.size(); i++) {
      own_.push_back(spare[2 * i].get());
      all_.push_back(spare[2 * i + 1].get());
    }
  }

  void clear(int64_t lanes) {
    lanes_ = lanes;
    count_ = 0;
  }

  // One core of the team begins, has given all its tiles.
  void begin_core(const TileTable& table) {
    for (size_t i = 0; i < own_.size(); i++) clear_totals(table, *own_[i], reductions_[i].op);
    core_values_ = 0;
  }
  void end_core(const TileTable& table, bool first) {
    for (size_t i = 0; i < own_.size(); i++) {
      const ReduceOp op = reductions_[i].op;
      if (step_.reduce_lanes) fold_lanes(table, *own_[i], op);
      if (first) {
        std::swap(own_[i], all_[i]);
      } else if (op == ReduceOp::EXX2) {
        for (int64_t l = 0; l < moments(); l++) all_[i]->sums[l] += own_[i]->sums[l];
        for (int64_t l = 0; l < moments(); l++) all_[i]->squares[l] += own_[i]->squares[l];
      } else {
        table.fold[static_cast<int>(op)](all_[i]->lanes, own_[i]->lanes, lanes_);
      }
    }
    count_ += core_values_;
  }

  // Takes lanes first ... first + lanes of the totals; the mask (or null) is that of each group.
  void add(const TileTable& table, const Workspace& space, int64_t source_at, int64_t first,
           int64_t lanes, const uint32_t* mask) {
    for (size_t i = 0; i < own_.size(); i++) {
      const ReduceOp op = reductions_[i].op;
      const uint32_t* values = space.registers[reductions_[i].source] + source_at;
      if (op == ReduceOp::EXX2 && step_.reduce_lanes) {
        const bool few_bits = reductions_[i].few_bits && numerics_ == Numerics::DLFLOAT16;
        const auto add = few_bits ? table.add_short_moments : table.add_group_moments;
        const int64_t at = first / step_.lanes * kMomentParts;
        add(own_[i]->sums + at, own_[i]->squares + at, values, mask, step_.lanes, lanes);
      } else if (op == ReduceOp::EXX2) {
        table.add_moments(own_[i]->sums + first, own_[i]->squares + first, values, mask, lanes);
      } else if (mask != nullptr) {
        table.fold_masked[static_cast<int>(op)](own_[i]->lanes + first, values, mask, step_.lanes,
                                                lanes);
      } else {
        table.fold[static_cast<int>(op)](own_[i]->lanes + first, values, lanes);
      }
    }
  }
  // Where machine code adds to the totals of this core.
  std::vector<TotalsAt> own_totals() const {
    std::vector<TotalsAt> all;
    for (Totals* own : own_) all.push_back({own->lanes, own->sums, own->squares});
    return all;
  }
  // How many values each result of this core has.
  void count(int64_t values) { core_values_ = values; }

  void write_results(Workspace& space) const {
    for (size_t i = 0; i < all_.size(); i++) {
      const int destination = reductions_[i].destination;
      if (reductions_[i].op == ReduceOp::EXX2) {
        write_moments(*all_[i], space.results[destination], space.results[destination + 1]);
      } else if (step_.compact) {
        const int64_t rows = lanes_ / step_.lanes;
        for (int64_t row = 0; row < rows; row++) {
          std::fill_n(space.results[destination] + row * kCompactLanes, kCompactLanes,
                      all_[i]->lanes[row * step_.lanes]);
        }
      } else {
        std::copy_n(all_[i]->lanes, lanes_, space.results[destination]);
      }
      space.result_bounds[destination] = {};
      if (reductions_[i].op == ReduceOp::EXX2) space.result_bounds[destination + 1] = {};
    }
  }

 private:
  // Sums of EXX2 that a reduction keeps.
  int64_t moments() const {
    return step_.reduce_lanes ? lanes_ / step_.lanes * kMomentParts : lanes_;
  }
  void clear_totals(const TileTable& table, Totals& totals, ReduceOp op) {
    if (op == ReduceOp::EXX2) {
      std::fill_n(totals.sums, moments(), 0.0);
      std::fill_n(totals.squares, moments(), 0.0);
    } else {
      // Sixteen bytes at a time, as fill_n does it without AVX, is slower than the code that adds.
      const uint32_t identity = identity_of(op);
      table.registers[CONSTANT_BITS].plain(
          {totals.lanes, nullptr, nullptr, nullptr, identity, 0, lanes_});
    }
  }
  void fold_lanes(const TileTable& table, Totals& totals, ReduceOp op) const {
    if (op == ReduceOp::EXX2) {
      table.fold_moments(totals.sums, lanes_ / step_.lanes);
      table.fold_moments(totals.squares, lanes_ / step_.lanes);
    } else {
      table.fold_lanes[static_cast<int>(op)](totals.lanes, step_.lanes, lanes_);
    }
  }
  // Where lanes are reduced the results of a group are the same.
  void write_moments(const Totals& totals, uint32_t* mean, uint32_t* variance) const {
    const double values = static_cast<double>(count_);
    const int64_t parts = step_.reduce_lanes ? kMomentParts : 1;
    const int64_t same = step_.reduce_lanes ? step_.result_lanes() : 1;
    for (int64_t l = 0; l < moments(); l += parts, mean += same, variance += same) {
      const double middle = totals.sums[l] / values;
      const double spread = totals.squares[l] / values - middle * middle;
      std::fill_n(mean, same, std::bit_cast<uint32_t>(static_cast<float>(middle)));
      std::fill_n(variance, same,
                  std::bit_cast<uint32_t>(static_cast<float>(spread < 0 ? 0 : spread)));
    }
  }

  const TileStep& step_;
  const Numerics numerics_;
  const std::vector<TileReduction>& reductions_;
  std::vector<Totals*> own_, all_;  // of one core, of the team
  int64_t lanes_ = 0;
  int64_t count_ = 0, core_values_ = 0;
};

// ---- Tiles ---------------------------------------------------------------------------

// Lanes that count, over all reduced points of a core; for lanes that are not reduced, points.
int64_t values_of(const TileStep& step, const TileWalk& walk, int core) {
  if (!step.reduce_lanes || walk.reduced_points == 0) return walk.reduced_points;
  int64_t values = walk.reduced_points * step.lanes;
  if (!step.tails[core].empty()) {
    const auto& tail = step.tails[core];
    const int64_t missing = std::count(tail.begin(), tail.end(), 0u);
    // Points with the last group: one in stick_extent, or all when there is no stick dim. The
    // parser refuses the case that points differ.
    const int64_t times =
        step.stick_dim < 0 ? walk.reduced_points : walk.reduced_points / walk.stick_extent;
    values -= missing * times;
  }
  return values;
}

// Lanes of a block: of registers that last, and of rows that machine code loads again. Neighbouring
// rows are adjacent, 128 bytes of each before the next stick of the first: few of them
// would be read in pieces that processors do not fetch ahead.
constexpr int64_t kRowsLanes = 32 * 1024;
constexpr int64_t kLongRowsLanes = 64 * 1024;
// Lanes of a tile of a chain whose code is assured. What surrounds the code takes a fourteenth of
// the time of 4096; but of as many lanes as here, some are often out of the ordinary, and a tile
// that is looked at as a whole is ordinary or not.
constexpr int64_t kAssuredLanes = 16 * 1024;

// What a thread works with; it is kept from one step to the next.
struct Bench {
  Workspace space;
  std::vector<uint32_t> rows;  // registers that last from phase to phase
  SpareTotals totals;
  const TileWalk* points_of = nullptr;  // whose reduced points are in the space, all of them
  uint64_t run = 0;                     // whose assumptions are in the space
};

Bench& own_bench() {
  static thread_local std::unique_ptr<Bench> bench;
  if (!bench) bench = std::make_unique<Bench>();
  return *bench;
}

// A block of kept points of a team.
struct Block {
  std::span<const TileRun> runs;
  int64_t groups;
};

// Registers of bodies that last, at `at` lanes from the begin of the block.
void use_rows_at(const TileStep& step, Bench& bench, int64_t at, int64_t block_lanes) {
  for (int reg : step.kept_on) {
    bench.space.registers[reg] = bench.rows.data() + at;
    at += block_lanes;
  }
}

// What is known of registers that last: in the next phase a tile begins with what is true of all
// tiles of this one.
class LastingBounds {
 public:
  LastingBounds(const TileStep& step, Workspace& space) : step_(step), space_(space) {
    for (int reg : step.kept_on) {
      before_[reg] = space.lane_bounds[reg];
      all_[reg] = Bounds::none();
    }
  }
  ~LastingBounds() {
    for (int reg : step_.kept_on) space_.lane_bounds[reg] = all_[reg];
  }
  void begin_tile() {
    for (int reg : step_.kept_on) space_.lane_bounds[reg] = before_[reg];
  }
  void end_tile() {
    for (int reg : step_.kept_on) all_[reg].include(space_.lane_bounds[reg]);
  }

 private:
  const TileStep& step_;
  Workspace& space_;
  Bounds before_[kTileRegisters], all_[kTileRegisters];
};

// The body of a phase at all points of a core in a block, with its reductions.
void run_body(const Machine& machine, int core, const Block& block, const TilePhase& phase,
              Bench& bench, Reducer& reducer) {
  const TileStep& step = machine.step;
  const TileWalk& walk = step.walks[step.walk_of[core]];
  if (walk.reduced_points == 0) return;
  Workspace& space = bench.space;
  const uint32_t* tail =
      step.tails[core].empty() || !step.reduce_lanes ? nullptr : step.tails[core].data();
  const int64_t tile_groups = kTileLanes / step.lanes;
  // What it reduces is part of the code, or of what follows it. Code needs no room for a tile: what
  // lasts has room for all points.
  const bool folds = phase.code != nullptr && machine.translated &&
                     (phase.code->reduces() || phase.reductions.empty());
  const bool all_at_once = folds && phase.code->runs_everywhere(machine);
  const int64_t batch =
      std::max<int64_t>(1, all_at_once ? kMaxGroups / static_cast<int64_t>(block.runs.size())
                                       : tile_groups / block.groups);
  const bool inner_is_stick = walk.kept.back().stick;
  const int64_t kept_lanes = block.groups * step.lanes;
  TileView tile{machine, walk, core, {}, 0, kept_lanes};
  Odometer reduced(walk.reduced, step.operands.size(), false);
  reduced.seek(0);
  LastingBounds lasting(step, space);
  const std::vector<TotalsAt> totals = folds ? reducer.own_totals() : std::vector<TotalsAt>();
  Part parts[kMaxGroups];
  for (int64_t first = 0; first < walk.reduced_points; first += batch) {
    const int64_t some = std::min(batch, walk.reduced_points - first);
    size_t count = 0;
    const bool all = some == walk.reduced_points;
    for (int64_t r = 0; r < some && !(all && bench.points_of == &walk); r++, reduced.step()) {
      reduced.here(space.points[r]);
    }
    bench.points_of = all ? &walk : nullptr;
    for (int64_t r = 0; r < some; r++) {
      for (const TileRun& run : block.runs) parts[count++] = {&run, &space.points[r]};
    }
    tile.parts = {parts, count};
    tile.lanes = some * kept_lanes;
    tile.whole_block = all_at_once && some == walk.reduced_points;
    use_rows_at(step, bench, first * kept_lanes, walk.reduced_points * kept_lanes);
    lasting.begin_tile();
    const bool folded = folds && phase.code->run(tile, space, totals);
    if (!folded) run_instructions(folds ? nullptr : phase.code, phase.body, tile, space);
    lasting.end_tile();
    if (phase.reductions.empty() || folded) continue;
    if (tail == nullptr) {
      for (int64_t r = 0; r < some; r++) {
        reducer.add(machine.table, space, r * kept_lanes, 0, kept_lanes, nullptr);
      }
      continue;
    }
    // Along the sticks only the last group has a tail.
    int64_t source = 0;
    for (int64_t r = 0; r < some; r++) {
      int64_t target = 0;
      for (const TileRun& run : block.runs) {
        const int64_t groups = inner_is_stick ? 1 : run.count;  // that are alike
        for (int64_t i = 0; i < run.count; i += groups) {
          const int64_t stick = run.stick + space.points[r].stick + (inner_is_stick ? i : 0);
          const bool last = step.stick_dim < 0 || stick == walk.stick_extent - 1;
          reducer.add(machine.table, space, source, target, groups * step.lanes,
                      last ? tail : nullptr);
          source += groups * step.lanes;
          target += groups * step.lanes;
        }
      }
    }
  }
  reducer.count(values_of(step, walk, core));
}

// One phase after the other on a block of kept points.
void run_phases(const Machine& machine, const TileTeam& team, const Block& block, TileView& kept,
                Bench& bench, std::vector<Reducer>& reducers) {
  const TileStep& step = machine.step;
  const int leader = team.cores[0];
  bench.space.operands_known = 0;
  for (size_t i = 0; i < step.phases.size(); i++) {
    const TilePhase& phase = step.phases[i];
    Reducer& reducer = reducers[i];
    reducer.clear(kept.lanes);
    bench.space.use_lanes();
    for (int core : team.cores) {
      if (team.cores.size() > 1) bench.space.operands_known = bench.space.fixed_known = 0;
      reducer.begin_core(machine.table);
      run_body(machine, core, block, phase, bench, reducer);
      reducer.end_core(machine.table, core == leader);
    }
    if (phase.reductions.empty()) continue;
    reducer.write_results(bench.space);
    bench.space.use_results();
    if (step.compact) {
      run_compact(phase.epilogue, kept, bench.space);
    } else {
      run_instructions(phase.epilogue, kept, bench.space);
    }
    if (!step.compact) continue;  // what follows holds for all lanes only if they are the same
    for (int result : phase.spread) {
      const uint32_t* value = bench.space.results[result];
      Bounds& bounds = bench.space.result_bounds[result] = Bounds::none();
      for (int64_t i = 0; i < block.groups; i++, value += step.result_lanes()) {
        bounds.include(Bounds::of(*value));
      }
    }
  }
}

// Whether machine code runs all bodies and nothing has a place for each lane of a tile but totals.
bool has_long_blocks(const Machine& machine) {
  const TileStep& step = machine.step;
  return step.compact && machine.translated &&
         std::all_of(step.phases.begin(), step.phases.end(), [&](const TilePhase& phase) {
           return phase.code != nullptr && (phase.code->reduces() || phase.reductions.empty()) &&
                  phase.code->runs_everywhere(machine);
         });
}

// Kept points first ... last of a team.
void run_points(const Machine& machine, const TileTeam& team, int64_t first, int64_t last) {
  Bench& bench = own_bench();
  Workspace& space = bench.space;
  const TileStep& step = machine.step;
  const int leader = team.cores[0];
  const TileWalk& walk = step.walks[step.walk_of[leader]];
  int64_t most_groups = kTileLanes / step.lanes;
  std::vector<Reducer> reducers;
  if (step.reduces()) {
    reducers.reserve(step.phases.size());
    for (const TilePhase& phase : step.phases) reducers.emplace_back(machine, phase, bench.totals);
  }
  if (step.phases.size() > 1) {
    // Neighbouring rows lie side by side in memory: as many as a tile has, while what they keep
    // from phase to phase stays in a cache.
    const int64_t kept_on = static_cast<int64_t>(step.kept_on.size());
    const int64_t row = std::max<int64_t>(1, kept_on * walk.reduced_points * step.lanes);
    if (has_long_blocks(machine)) {
      // What surrounds a block is much for a few short rows.
      const int64_t lanes = std::max(row, walk.reduced_points * step.lanes);
      while (2 * most_groups * lanes <= kLongRowsLanes &&
             2 * most_groups * step.lanes <= kLongTileLanes) {
        most_groups *= 2;
      }
    }
    most_groups = std::clamp<int64_t>(kRowsLanes / row, 1, most_groups);
    const size_t needed = most_groups * row;
    if (bench.rows.size() < needed) bench.rows.resize(needed);
  }
  const std::shared_ptr<const TileCode>& code = step.phases[0].code;
  const bool is_chain = !step.reduces() && machine.translated && code != nullptr &&
                        !code->has_lasting() && code->runs_everywhere(machine);
  if (is_chain) most_groups = kLongTileLanes / step.lanes;
  TileView tile{machine, walk, leader, {}, 0, 0};
  Part parts[kMaxGroups];
  Odometer kept(walk.kept, step.operands.size(), true);
  kept.seek(first);
  space.use_lanes();
  // What a thread has seen in one task it may expect in the next one.
  if (bench.run != machine.run) {
    space.operands_assumed = 0;
    space.seen_by = nullptr;
  }
  bench.run = machine.run;
  space.fixed_known = 0;
  space.assured = nullptr;
  bench.points_of = nullptr;
  int64_t groups = 0;
  for (int64_t at = first; at < last; at += groups) {
    const bool assured = is_chain && space.assured == code.get();
    const int64_t most = std::min(assured ? kAssuredLanes / step.lanes : most_groups, last - at);
    size_t count = 0;
    for (groups = 0; groups < most && count < kMaxGroups; groups += space.runs[count++].count) {
      kept.take(most - groups, space.runs[count]);
    }
    for (size_t i = 0; i < count; i++) parts[i] = {&space.runs[i], nullptr};
    tile.parts = {parts, count};
    tile.lanes = groups * step.lanes;
    if (step.reduces()) {
      run_phases(machine, team, {{space.runs, count}, groups}, tile, bench, reducers);
    } else {
      run_instructions(code, step.phases[0].body, tile, space);
    }
  }
}

struct Task {
  const TileTeam* team;
  int64_t first, last;
};

constexpr int64_t kSerialElements = 64 * 1024;
constexpr int64_t kTasksPerThread = 16;

std::vector<Task> divide(const TileStep& step, int threads) {
  const int64_t tile_groups = kTileLanes / step.lanes;
  const int64_t teams = static_cast<int64_t>(step.teams.size());
  const int64_t wanted = threads == 1 ? 1 : (kTasksPerThread * threads + teams - 1) / teams;
  std::vector<Task> tasks;
  for (const TileTeam& team : step.teams) {
    const int64_t points = step.walks[step.walk_of[team.cores[0]]].kept_points;
    const int64_t tiles = (points + tile_groups - 1) / tile_groups;
    const int64_t pieces = std::min(wanted, tiles);
    for (int64_t i = 0; i < pieces; i++) {
      tasks.push_back({&team, tiles * i / pieces * tile_groups,
                       std::min(points, tiles * (i + 1) / pieces * tile_groups)});
    }
  }
  return tasks;
}

void run_tile(const TileStep& step, const RunContext& context, Simd simd, bool translated) {
  if (step.elements == 0 && !step.reduces()) return;
  static std::atomic<uint64_t> runs{0};
  Machine machine{step, context, tile_table(simd), convert_table(simd), {}, translated, ++runs};
  const int cores = static_cast<int>(step.walk_of.size());
  machine.bases.reserve(cores * step.operands.size());
  for (int core = 0; core < cores; core++) {
    for (const TileOperand& operand : step.operands) {
      machine.bases.push_back(resolve(operand.address, core, context));
    }
  }
  const int threads = step.elements < kSerialElements ? 1 : context.pool.threads();
  const std::vector<Task> tasks = divide(step, threads);
  const auto run = [&](int i) {
    run_points(machine, *tasks[i].team, tasks[i].first, tasks[i].last);
  };
  if (threads == 1) {
    for (size_t i = 0; i < tasks.size(); i++) run(static_cast<int>(i));
  } else {
    context.pool.run(static_cast<int>(tasks.size()), run);
  }
}

}  // namespace

void run_tile(const TileStep& step, const StepHead&, const RunContext& context) {
  run_tile(step, context, best_simd(), context.translates);
}

void run_tile(const TileStep& step, const StepHead&, const RunContext& context, Simd simd) {
  run_tile(step, context, simd, false);
}

}  // namespace spyre::card
