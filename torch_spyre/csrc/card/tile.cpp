// In reading order: parsing, planning the walk, and running (loads and stores, instructions,
// reductions, tasks).
#include "tile.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace spyre::card {
namespace {

// ---- Parsing ----------------------------------------------------------------------------------

constexpr int64_t kMaxDims = 16;
constexpr int64_t kMaxInstructions = 4096;

// Checks that instructions read only registers that something has written.
class InstructionParser {
 public:
  InstructionParser(WordReader& reader, const TileStep& step) : reader_(reader), step_(step) {}

  void define(int64_t reg) { written_[reg] = true; }
  void forget() { std::fill(std::begin(written_), std::end(written_), false); }
  bool is_defined(int64_t reg) const { return written_[reg]; }

  std::vector<TileInstruction> parse() {
    const int64_t count = reader_.next(0, kMaxInstructions, "the number of instructions");
    std::vector<TileInstruction> instructions;
    for (int64_t i = 0; i < count; i++) add(instructions, parse_one());
    return instructions;
  }

 private:
  TileInstruction parse_one() {
    const std::vector<int64_t> words = reader_.list(8);
    TileInstruction in;
    in.opcode = static_cast<int>(std::clamp<int64_t>(words[0], -1, kNumOpcodes));
    in.imm0 = static_cast<uint32_t>(words[5]);
    in.imm1 = static_cast<uint32_t>(words[6]);
    switch (in.opcode) {
      case LOAD:
        in.a = operand(words[2], &TileOperand::can_load, "loaded");
        in.destination = output(words[1]);
        return in;
      case STORE:
        in.destination = operand(words[1], &TileOperand::can_store, "stored");
        in.a = input(words[2]);
        if (step_.operands[in.destination].form == OperandForm::EXX2_STORE) in.b = input(words[3]);
        return in;
      case ROUND:
        if (words[3] < 0 || words[3] >= kNumDataFormats ||
            !is_tile_format(static_cast<DataFormat>(words[3]))) {
          reader_.fail("it rounds to format " + std::to_string(words[3]));
        }
        in.format = static_cast<DataFormat>(words[3]);
        in.a = input(words[2]);
        in.destination = output(words[1]);
        return in;
      default:
        break;
    }
    const int inputs = inputs_of(in.opcode);
    if (inputs < 0) reader_.fail("there is no opcode " + std::to_string(words[0]));
    if ((in.opcode == WIDEN || in.opcode == NARROW) && step_.lanes % 64 != 0) {
      reader_.fail("widen and narrow need groups of 64 lanes");
    }
    if (inputs > 0) in.a = input(words[2]);
    if (inputs > 1) in.b = input(words[3]);
    if (inputs > 2) in.c = input(words[4]);
    in.destination = output(words[1]);
    return in;
  }

  // Rounding a result in place is part of the instruction that made it.
  static void add(std::vector<TileInstruction>& instructions, const TileInstruction& in) {
    const bool in_place = in.opcode == ROUND && in.format == DataFormat::SEN169_FP16 &&
                          in.a == in.destination && !instructions.empty();
    if (in_place) {
      TileInstruction& before = instructions.back();
      if (before.destination == in.a && before.opcode > ROUND && !before.then_round) {
        before.then_round = true;
        return;
      }
    }
    instructions.push_back(in);
  }

  int reg(int64_t number) {
    if (number < 0 || number >= kTileRegisters) {
      reader_.fail("there is no register " + std::to_string(number));
    }
    return static_cast<int>(number);
  }
  int input(int64_t number) {
    if (!written_[reg(number)]) {
      reader_.fail("it reads register " + std::to_string(number) + " before it writes it");
    }
    return static_cast<int>(number);
  }
  int output(int64_t number) {
    written_[reg(number)] = true;
    return static_cast<int>(number);
  }
  int operand(int64_t number, bool (TileOperand::*allowed)() const, const char* what) {
    if (number < 0 || number >= static_cast<int64_t>(step_.operands.size())) {
      reader_.fail("there is no operand " + std::to_string(number));
    }
    if (!(step_.operands[number].*allowed)()) {
      reader_.fail("operand " + std::to_string(number) + " has a form that cannot be " + what);
    }
    return static_cast<int>(number);
  }

  WordReader& reader_;
  const TileStep& step_;
  bool written_[kTileRegisters] = {};
};

std::vector<std::vector<uint32_t>> parse_tails(WordReader& reader, const StepHead& head,
                                               int lanes) {
  std::vector<std::vector<uint32_t>> tails(head.cores);
  for (auto& tail : tails) {
    const std::vector<int64_t> words = reader.list(2);
    std::vector<uint32_t> mask(lanes);
    bool all = true;
    for (int i = 0; i < lanes; i++) {
      const bool valid = words[i / 64] >> (i % 64) & 1;
      mask[i] = valid ? ~0u : 0;
      all = all && valid;
    }
    if (!all) tail = std::move(mask);
  }
  return tails;
}

void parse_reductions(WordReader& reader, TileStep& step, int64_t count,
                      InstructionParser& instructions) {
  for (int64_t i = 0; i < count; i++) {
    TileReduction reduction;
    reduction.op = static_cast<ReduceOp>(reader.next(0, 4, "the operation of a reduction"));
    reduction.source =
        static_cast<int>(reader.next(0, kTileRegisters - 1, "the source of a reduction"));
    const int results = reduction.op == ReduceOp::EXX2 ? 2 : 1;
    reduction.destination = static_cast<int>(
        reader.next(0, kTileRegisters - results, "the destination of a reduction"));
    if (!instructions.is_defined(reduction.source)) {
      reader.fail("it reduces register " + std::to_string(reduction.source) +
                  " before it writes it");
    }
    step.reductions.push_back(reduction);
  }
  instructions.forget();
  for (const TileReduction& reduction : step.reductions) {
    instructions.define(reduction.destination);
    if (reduction.op == ReduceOp::EXX2) instructions.define(reduction.destination + 1);
  }
}

std::vector<TileTeam> teams_of(const std::vector<int64_t>& groups) {
  std::vector<TileTeam> teams;
  std::map<int64_t, size_t> known;
  for (size_t core = 0; core < groups.size(); core++) {
    const auto [at, is_new] = known.try_emplace(groups[core], teams.size());
    if (is_new) teams.emplace_back();
    teams[at->second].cores.push_back(static_cast<int>(core));
  }
  return teams;
}

// Along kept sticks the last result would have fewer values than the others.
void check_moments(WordReader& reader, const TileStep& step) {
  if (!step.reduce_lanes || step.stick_dim < 0 || step.stick_dim >= step.kept_dims) return;
  const bool moments = std::any_of(step.reductions.begin(), step.reductions.end(),
                                   [](const auto& r) { return r.op == ReduceOp::EXX2; });
  const bool tails = std::any_of(step.tails.begin(), step.tails.end(),
                                 [](const auto& tail) { return !tail.empty(); });
  if (moments && tails) reader.fail("exx2 of lanes with a tail needs its stick dim reduced");
}

// ---- The walk ---------------------------------------------------------------------------------

// Two neighbouring dimensions are one when every operand goes on from the inner one's end.
bool joins(const TileDim& outer, const TileDim& inner) {
  for (size_t i = 0; i < outer.strides.size(); i++) {
    if (outer.strides[i] != inner.strides[i] * inner.extent) return false;
  }
  return true;
}

void join_neighbours(std::vector<TileDim>& dims, bool stick_matters) {
  std::vector<TileDim> joined;
  for (TileDim& dim : dims) {
    if (dim.extent == 1 && !(dim.stick && stick_matters)) continue;
    if (!joined.empty() && joins(joined.back(), dim) &&
        !((dim.stick || joined.back().stick) && stick_matters)) {
      dim.extent *= joined.back().extent;
      joined.back() = std::move(dim);
    } else {
      joined.push_back(std::move(dim));
    }
  }
  dims = std::move(joined);
}

// The operand whose sticks should be visited in the order of memory: what is stored; for a
// reduction what is loaded, which is more.
int leading_operand(const TileStep& step) {
  const auto is_vector = [&](int operand) {
    return step.operands[operand].form == OperandForm::VECTOR;
  };
  if (step.reductions.empty()) {
    for (const TileInstruction& in : step.body) {
      if (in.opcode == STORE && is_vector(in.destination)) return in.destination;
    }
  }
  for (const TileInstruction& in : step.body) {
    if (in.opcode == LOAD && is_vector(in.a)) return in.a;
  }
  return -1;
}

TileWalk make_walk(const TileStep& step, const int64_t* extents, int leading, bool stick_matters) {
  TileWalk walk;
  for (int d = 0; d < step.kept_dims + step.reduced_dims; d++) {
    TileDim dim{extents[d], d == step.stick_dim, {}};
    for (const TileOperand& operand : step.operands) dim.strides.push_back(operand.strides[d]);
    const bool kept = d < step.kept_dims;
    (kept ? walk.kept_points : walk.reduced_points) *= extents[d];
    if (dim.stick) walk.stick_extent = extents[d];
    (kept ? walk.kept : walk.reduced).push_back(std::move(dim));
  }
  if (leading >= 0) {
    // A stride of zero says nothing about order: such dimensions go outermost.
    const auto key = [leading](const TileDim& dim) {
      const int64_t stride = std::abs(dim.strides[leading]);
      return stride == 0 ? std::numeric_limits<int64_t>::max() : stride;
    };
    std::stable_sort(walk.kept.begin(), walk.kept.end(),
                     [&](const TileDim& a, const TileDim& b) { return key(a) > key(b); });
  }
  join_neighbours(walk.kept, stick_matters);
  join_neighbours(walk.reduced, stick_matters);
  if (walk.kept.empty()) {
    walk.kept.push_back({1, false, std::vector<int64_t>(step.operands.size())});
  }
  return walk;
}

void plan_walks(TileStep& step, const StepHead& head, const std::vector<int64_t>& extents) {
  const int dims = step.kept_dims + step.reduced_dims;
  bool stick_matters = false;
  for (const TileOperand& operand : step.operands) {
    for (int64_t limit : operand.limits) stick_matters = stick_matters || limit >= 0;
  }
  if (step.reduce_lanes) {
    for (const auto& tail : step.tails) stick_matters = stick_matters || !tail.empty();
  }
  const int leading = leading_operand(step);
  std::map<std::vector<int64_t>, int> known;
  for (int core = 0; core < head.cores; core++) {
    const int64_t* own = extents.data() + core * dims;
    const auto [at, is_new] =
        known.try_emplace({own, own + dims}, static_cast<int>(step.walks.size()));
    if (is_new) step.walks.push_back(make_walk(step, own, leading, stick_matters));
    step.walk_of.push_back(at->second);
    const TileWalk& walk = step.walks[at->second];
    step.elements += walk.kept_points * walk.reduced_points * step.lanes;
  }
}

void check_teams(WordReader& reader, const TileStep& step, const std::vector<int64_t>& extents) {
  const int dims = step.kept_dims + step.reduced_dims;
  for (const TileTeam& team : step.teams) {
    const auto first = extents.begin() + team.cores[0] * dims;
    for (int core : team.cores) {
      if (!std::equal(first, first + step.kept_dims, extents.begin() + core * dims)) {
        reader.fail("cores " + std::to_string(team.cores[0]) + " and " + std::to_string(core) +
                    " are in one group but have different kept extents");
      }
    }
  }
}

// ---- Running: where operands are --------------------------------------------------------------

// What the places of a tile share.
struct Machine {
  const TileStep& step;
  const RunContext& context;
  const TileTable& table;
  const ConvertTable& convert;
  std::vector<std::byte*> bases;  // core * operands + operand

  std::byte* base(int core, int operand) const {
    return bases[core * step.operands.size() + operand];
  }
};

// Groups that lie one inner step apart for every operand.
struct Run {
  int64_t count = 0;
  int64_t stick = 0;  // index along the stick dim of the first one
  int64_t offsets[kMaxTileOperands];

  void copy_to(Run& other, size_t operands) const {
    std::memcpy(&other, this, offsetof(Run, offsets) + operands * sizeof(int64_t));
  }
};

// A tile is made of runs; in a reduction each run appears once for each reduced point.
struct Part {
  const Run* run;
  const Run* reduced;  // offsets to add, and the stick index if the stick dim is reduced; or null
};

struct TileView {
  const Machine& machine;
  const TileWalk& walk;
  int core;
  std::span<const Part> parts;
  int64_t lanes = 0;
};

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
  void take(int64_t most, Run& run) {
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
  void here(Run& run) const { run_.copy_to(run, operands_); }
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
  int64_t index_[kMaxDims] = {};
  int64_t inner_ = 0;
  Run run_;
};

// ---- Running: loads and stores ----------------------------------------------------------------

// Whole lanes of a format from contiguous memory.
void load_lanes(const Machine& machine, DataFormat format, const std::byte* from, uint32_t* out,
                int64_t lanes) {
  auto* to = reinterpret_cast<std::byte*>(out);
  const auto rows = [&](const ConvertRows* table, Conversion conversion) {
    table[static_cast<int>(conversion)](to, 0, from, 0, 1, lanes, Stores::CACHED);
  };
  switch (format) {
    case DataFormat::SEN169_FP16:
      if (machine.context.numerics == Numerics::DLFLOAT16) {
        return machine.table.decode_dlfloat16(out, from, lanes);
      }
      [[fallthrough]];
    case DataFormat::IEEE_FP16:
      return rows(machine.convert.from_card, Conversion::F32_HALF);
    case DataFormat::BFLOAT16:
      return rows(machine.convert.to_card, Conversion::BF16_F32);
    case DataFormat::SEN143_FP8:
    case DataFormat::SENINT8:
      for (int64_t i = 0; i < lanes; i++) {
        out[i] = load_element(format, machine.context.numerics, from + i);
      }
      return;
    default:
      std::memcpy(out, from, lanes * 4);
  }
}

void store_lanes(const Machine& machine, DataFormat format, const uint32_t* in, std::byte* to,
                 int64_t lanes) {
  const auto* from = reinterpret_cast<const std::byte*>(in);
  const auto rows = [&](const ConvertRows* table, Conversion conversion) {
    table[static_cast<int>(conversion)](to, 0, from, 0, 1, lanes, Stores::CACHED);
  };
  switch (format) {
    case DataFormat::SEN169_FP16:
      if (machine.context.numerics == Numerics::DLFLOAT16) {
        return machine.table.encode_dlfloat16(to, in, lanes);
      }
      [[fallthrough]];
    case DataFormat::IEEE_FP16:
      return rows(machine.convert.to_card, Conversion::F32_HALF);
    case DataFormat::BFLOAT16:
      return rows(machine.convert.from_card, Conversion::BF16_F32);
    case DataFormat::SEN143_FP8:
    case DataFormat::SENINT8:
      for (int64_t i = 0; i < lanes; i++) {
        store_element(format, machine.context.numerics, in[i], to + i);
      }
      return;
    default:
      std::memcpy(to, from, lanes * 4);
  }
}

// One part of a tile in one operand: groups `stride` bytes apart.
struct Place {
  std::byte* at;
  int64_t stride;
  int64_t count;
  int64_t left;       // sticks that exist from the first group on
  int64_t left_step;  // how many fewer there are at each further group
};

Place place_of(const TileView& tile, const Part& part, int number) {
  const TileStep& step = tile.machine.step;
  const TileOperand& operand = step.operands[number];
  const TileDim& inner = tile.walk.kept.back();
  Place place{tile.machine.base(tile.core, number) + part.run->offsets[number],
              inner.strides[number], part.run->count, kAllSticks, 0};
  int64_t stick = part.run->stick;
  if (part.reduced != nullptr) {
    place.at += part.reduced->offsets[number];
    stick += part.reduced->stick;
  }
  const int64_t limit = operand.limits[tile.core];
  if (limit >= 0) {
    const int64_t per_group = step.shapes[number].sticks;
    place.left_step = inner.stick ? per_group : 0;
    place.left = std::max<int64_t>(0, limit - stick * per_group);
    if (place.left >= per_group + (place.count - 1) * place.left_step) place.left = kAllSticks;
  }
  return place;
}

int64_t left_at(const Place& place, int64_t group) {
  return place.left == kAllSticks ? kAllSticks : place.left - group * place.left_step;
}

void load_part(const Machine& machine, int number, const Place& place, uint32_t* out) {
  const TileOperand& operand = machine.step.operands[number];
  const GroupShape& shape = machine.step.shapes[number];
  const int lanes = machine.step.lanes;
  if (place.left != kAllSticks) {
    for (int64_t i = 0; i < place.count; i++) {
      load_group(operand, place.at + i * place.stride, left_at(place, i), lanes,
                 machine.context.numerics, out + i * lanes);
    }
    return;
  }
  if (operand.form != OperandForm::VECTOR) {
    const int64_t groups = place.stride == 0 ? place.count : 1;  // with the same value
    for (int64_t i = 0; i < place.count; i += groups) {
      const uint32_t value =
          load_splat(operand, place.at + i * place.stride, machine.context.numerics);
      machine.table.plain[CONSTANT_BITS](
          {out + i * lanes, nullptr, nullptr, nullptr, value, 0, groups * lanes});
    }
    return;
  }
  if (shape.whole && (place.stride == shape.sticks * kStickBytes || place.count == 1)) {
    return load_lanes(machine, operand.format, place.at, out, place.count * lanes);
  }
  for (int64_t i = 0; i < place.count; i++, out += lanes) {
    if (place.stride == 0 && i > 0) {
      std::memcpy(out, out - lanes, lanes * 4);
      continue;
    }
    const std::byte* at = place.at + i * place.stride;
    if (shape.whole) {
      load_lanes(machine, operand.format, at, out, lanes);
      continue;
    }
    for (int s = 0; s < shape.sticks; s++) {
      load_lanes(machine, operand.format, at + s * operand.sub_stride, out + s * shape.per_stick,
                 shape.per_stick);
    }
  }
}

void store_part(const Machine& machine, int number, const Place& place, const uint32_t* in,
                const uint32_t* second) {
  const TileOperand& operand = machine.step.operands[number];
  const GroupShape& shape = machine.step.shapes[number];
  const int lanes = machine.step.lanes;
  if (place.left != kAllSticks || operand.form != OperandForm::VECTOR) {
    for (int64_t i = 0; i < place.count; i++) {
      store_group(operand, place.at + i * place.stride, left_at(place, i), lanes,
                  machine.context.numerics, in + i * lanes,
                  second == nullptr ? nullptr : second + i * lanes);
    }
    return;
  }
  if (shape.whole && (place.stride == shape.sticks * kStickBytes || place.count == 1)) {
    return store_lanes(machine, operand.format, in, place.at, place.count * lanes);
  }
  for (int64_t i = 0; i < place.count; i++, in += lanes) {
    std::byte* at = place.at + i * place.stride;
    if (shape.whole) {
      store_lanes(machine, operand.format, in, at, lanes);
      continue;
    }
    for (int s = 0; s < shape.sticks; s++) {
      store_lanes(machine, operand.format, in + s * shape.per_stick, at + s * operand.sub_stride,
                  shape.per_stick);
    }
  }
}

// ---- Running: instructions --------------------------------------------------------------------

constexpr int kMaxGroups = kTileLanes / 32;  // of a tile

struct alignas(64) Workspace {
  uint32_t registers[kTileRegisters][kTileLanes];
  Run runs[kMaxGroups];    // of the kept points of a tile
  Run points[kMaxGroups];  // reduced points of a tile
};

void round_to(const Machine& machine, DataFormat format, uint32_t* out, const uint32_t* in,
              int64_t lanes) {
  if (format == DataFormat::SEN169_FP16 && machine.context.numerics == Numerics::DLFLOAT16) {
    return machine.table.round_dlfloat16(out, in, lanes);
  }
  alignas(64) std::byte stored[kTileLanes * 4];
  store_lanes(machine, format, in, stored, lanes);
  load_lanes(machine, format, stored, out, lanes);
}

void compute(const Machine& machine, const TileInstruction& in, Workspace& space, int64_t lanes) {
  const auto reg = [&](int number) { return number < 0 ? nullptr : space.registers[number]; };
  const TileArguments arguments{
      space.registers[in.destination], reg(in.a), reg(in.b), reg(in.c), in.imm0, in.imm1, lanes};
  if (!in.then_round) return machine.table.plain[in.opcode](arguments);
  const TileKernel rounded = machine.table.rounded[in.opcode];
  if (rounded != nullptr && machine.context.numerics == Numerics::DLFLOAT16) {
    return rounded(arguments);
  }
  machine.table.plain[in.opcode](arguments);
  round_to(machine, DataFormat::SEN169_FP16, arguments.out, arguments.out, lanes);
}

void run_instructions(const std::vector<TileInstruction>& instructions, const TileView& tile,
                      Workspace& space) {
  const Machine& machine = tile.machine;
  for (const TileInstruction& in : instructions) {
    switch (in.opcode) {
      case LOAD: {
        uint32_t* out = space.registers[in.destination];
        for (const Part& part : tile.parts) {
          load_part(machine, in.a, place_of(tile, part, in.a), out);
          out += part.run->count * machine.step.lanes;
        }
        break;
      }
      case STORE: {
        int64_t at = 0;
        for (const Part& part : tile.parts) {
          store_part(machine, in.destination, place_of(tile, part, in.destination),
                     space.registers[in.a] + at, in.b < 0 ? nullptr : space.registers[in.b] + at);
          at += part.run->count * machine.step.lanes;
        }
        break;
      }
      case ROUND:
        round_to(machine, in.format, space.registers[in.destination], space.registers[in.a],
                 tile.lanes);
        break;
      default:
        compute(machine, in, space, tile.lanes);
    }
  }
}

// ---- Running: reductions ----------------------------------------------------------------------

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
  alignas(64) uint32_t lanes[kTileLanes];
  alignas(64) double sums[kTileLanes];  // EXX2 only, as are the following
  alignas(64) double squares[kTileLanes];
};

class Reducer {
 public:
  explicit Reducer(const TileStep& step)
      : step_(step), own_(step.reductions.size()), all_(step.reductions.size()) {}

  void clear(int64_t lanes) {
    lanes_ = lanes;
    count_ = 0;
  }

  // One core of the team begins, has given all its tiles.
  void begin_core() {
    for (size_t i = 0; i < own_.size(); i++) clear_totals(own_[i], step_.reductions[i].op);
    core_values_ = 0;
  }
  void end_core(const TileTable& table, bool first) {
    for (size_t i = 0; i < own_.size(); i++) {
      const ReduceOp op = step_.reductions[i].op;
      if (op == ReduceOp::EXX2) {
        if (step_.reduce_lanes) fold_moments(own_[i]);
        if (first) {
          std::copy_n(own_[i].sums, lanes_, all_[i].sums);
          std::copy_n(own_[i].squares, lanes_, all_[i].squares);
        } else {
          for (int64_t l = 0; l < lanes_; l++) all_[i].sums[l] += own_[i].sums[l];
          for (int64_t l = 0; l < lanes_; l++) all_[i].squares[l] += own_[i].squares[l];
        }
        continue;
      }
      const int index = static_cast<int>(op);
      if (step_.reduce_lanes) table.fold_lanes[index](own_[i].lanes, step_.lanes, lanes_);
      if (first) {
        std::copy_n(own_[i].lanes, lanes_, all_[i].lanes);
      } else {
        table.fold[index](all_[i].lanes, own_[i].lanes, lanes_);
      }
    }
    count_ += core_values_;
  }

  // Takes lanes first ... first + lanes of the totals; the mask (or null) is that of each group.
  void add(const TileTable& table, const Workspace& space, int64_t source_at, int64_t first,
           int64_t lanes, const uint32_t* mask) {
    for (size_t i = 0; i < own_.size(); i++) {
      const TileReduction& reduction = step_.reductions[i];
      const uint32_t* values = space.registers[reduction.source] + source_at;
      if (reduction.op == ReduceOp::EXX2) {
        table.add_moments(own_[i].sums + first, own_[i].squares + first, values, mask, lanes);
      } else if (mask != nullptr) {
        table.fold_masked[static_cast<int>(reduction.op)](own_[i].lanes + first, values, mask,
                                                          lanes);
      } else {
        table.fold[static_cast<int>(reduction.op)](own_[i].lanes + first, values, lanes);
      }
    }
  }
  // How many values each result of this core has.
  void count(int64_t values) { core_values_ = values; }

  void results(Workspace& space) const {
    for (size_t i = 0; i < all_.size(); i++) {
      const TileReduction& reduction = step_.reductions[i];
      if (reduction.op == ReduceOp::EXX2) {
        write_moments(all_[i], space.registers[reduction.destination],
                      space.registers[reduction.destination + 1]);
      } else {
        std::copy_n(all_[i].lanes, lanes_, space.registers[reduction.destination]);
      }
    }
  }

 private:
  void clear_totals(Totals& totals, ReduceOp op) {
    if (op == ReduceOp::EXX2) {
      std::fill_n(totals.sums, lanes_, 0.0);
      std::fill_n(totals.squares, lanes_, 0.0);
    } else {
      std::fill_n(totals.lanes, lanes_, identity_of(op));
    }
  }
  void fold_moments(Totals& totals) const {
    for (int64_t first = 0; first < lanes_; first += step_.lanes) {
      for (double* values : {totals.sums + first, totals.squares + first}) {
        double total = 0;
        for (int l = 0; l < step_.lanes; l++) total += values[l];
        std::fill_n(values, step_.lanes, total);
      }
    }
  }
  void write_moments(const Totals& totals, uint32_t* mean, uint32_t* variance) const {
    const double values = static_cast<double>(count_);
    for (int64_t l = 0; l < lanes_; l++) {
      const double middle = totals.sums[l] / values;
      const double spread = totals.squares[l] / values - middle * middle;
      mean[l] = std::bit_cast<uint32_t>(static_cast<float>(middle));
      variance[l] = std::bit_cast<uint32_t>(static_cast<float>(spread < 0 ? 0 : spread));
    }
  }

  const TileStep& step_;
  std::vector<Totals> own_, all_;  // of one core, of the team
  int64_t lanes_ = 0;
  int64_t count_ = 0, core_values_ = 0;
};

// ---- Running: tiles ---------------------------------------------------------------------------

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

void reduce_tile(const Machine& machine, int core, std::span<const Run> runs, int64_t groups,
                 Workspace& space, Reducer& reducer) {
  const TileStep& step = machine.step;
  const TileWalk& walk = step.walks[step.walk_of[core]];
  if (walk.reduced_points == 0) return;
  const uint32_t* tail =
      step.tails[core].empty() || !step.reduce_lanes ? nullptr : step.tails[core].data();
  const int64_t tile_groups = kTileLanes / step.lanes;
  const int64_t batch = std::max<int64_t>(1, tile_groups / groups);
  const bool inner_is_stick = walk.kept.back().stick;
  TileView tile{machine, walk, core, {}, 0};
  Odometer reduced(walk.reduced, step.operands.size(), false);
  reduced.seek(0);
  Part parts[kMaxGroups];
  for (int64_t first = 0; first < walk.reduced_points; first += batch) {
    const int64_t some = std::min(batch, walk.reduced_points - first);
    size_t count = 0;
    for (int64_t r = 0; r < some; r++, reduced.step()) {
      reduced.here(space.points[r]);
      for (const Run& run : runs) parts[count++] = {&run, &space.points[r]};
    }
    tile.parts = {parts, count};
    tile.lanes = some * groups * step.lanes;
    run_instructions(step.body, tile, space);
    if (tail == nullptr) {
      for (int64_t r = 0; r < some; r++) {
        reducer.add(machine.table, space, r * groups * step.lanes, 0, groups * step.lanes, nullptr);
      }
      continue;
    }
    int64_t source = 0;
    for (int64_t r = 0; r < some; r++) {
      int64_t target = 0;
      for (const Run& run : runs) {
        const int64_t stick = run.stick + space.points[r].stick;
        const bool stays = !inner_is_stick;
        for (int64_t i = 0; i < run.count; i++) {
          const bool last = step.stick_dim < 0 || stick + (stays ? 0 : i) == walk.stick_extent - 1;
          reducer.add(machine.table, space, source, target, step.lanes, last ? tail : nullptr);
          source += step.lanes;
          target += step.lanes;
        }
      }
    }
  }
  reducer.count(values_of(step, walk, core));
}

// Kept points first ... last of a team.
void run_points(const Machine& machine, const TileTeam& team, int64_t first, int64_t last) {
  static thread_local std::unique_ptr<Workspace> kept_space;
  if (!kept_space) kept_space = std::make_unique<Workspace>();
  Workspace& space = *kept_space;
  const TileStep& step = machine.step;
  const int leader = team.cores[0];
  const TileWalk& walk = step.walks[step.walk_of[leader]];
  const int64_t tile_groups = kTileLanes / step.lanes;
  Reducer reducer(step);
  TileView tile{machine, walk, leader, {}, 0};
  Part parts[kMaxGroups];
  Odometer kept(walk.kept, step.operands.size(), true);
  kept.seek(first);
  for (int64_t at = first; at < last; at += tile_groups) {
    const int64_t groups = std::min(tile_groups, last - at);
    size_t count = 0;
    for (int64_t taken = 0; taken < groups; taken += space.runs[count++].count) {
      kept.take(groups - taken, space.runs[count]);
    }
    const std::span<const Run> runs(space.runs, count);
    if (!step.reductions.empty()) {
      reducer.clear(groups * step.lanes);
      for (int core : team.cores) {
        reducer.begin_core();
        reduce_tile(machine, core, runs, groups, space, reducer);
        reducer.end_core(machine.table, core == leader);
      }
      reducer.results(space);
    }
    for (size_t i = 0; i < count; i++) parts[i] = {&runs[i], nullptr};
    tile.parts = {parts, count};
    tile.lanes = groups * step.lanes;
    run_instructions(step.reductions.empty() ? step.body : step.epilogue, tile, space);
  }
}

struct Task {
  const TileTeam* team;
  int64_t first, last;
};

constexpr int64_t kSerialElements = 64 * 1024;
constexpr int64_t kTasksPerThread = 4;

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

}  // namespace

TileStep parse_tile(WordReader& reader, const StepHead& head) {
  TileStep step;
  step.lanes = static_cast<int>(reader.next(32, 128, "the number of lanes"));
  if (!std::has_single_bit(static_cast<unsigned>(step.lanes))) {
    reader.fail("groups have " + std::to_string(step.lanes) + " lanes, not 32, 64 or 128");
  }
  step.kept_dims = static_cast<int>(reader.next(0, kMaxDims, "the number of kept dimensions"));
  step.reduced_dims = static_cast<int>(
      reader.next(0, kMaxDims - step.kept_dims, "the number of reduced dimensions"));
  const int dims = step.kept_dims + step.reduced_dims;
  step.stick_dim = static_cast<int>(reader.next(-1, dims - 1, "the stick dim"));
  const std::vector<int64_t> extents = reader.list(static_cast<size_t>(head.cores) * dims);
  for (int64_t extent : extents) {
    if (extent < 0) reader.fail("an extent is " + std::to_string(extent));
  }
  step.tails = parse_tails(reader, head, step.lanes);
  const int64_t operands = reader.next(0, kMaxTileOperands, "the number of operands");
  for (int64_t i = 0; i < operands; i++) {
    step.operands.push_back(parse_tile_operand(reader, head, dims, step.lanes));
    const TileOperand& operand = step.operands.back();
    const int per_stick = static_cast<int>(elems_per_stick(operand.format));
    const int sticks = sticks_per_group(operand, step.lanes);
    step.shapes.push_back({per_stick, sticks, sticks == 1 || operand.sub_stride == kStickBytes});
  }
  InstructionParser instructions(reader, step);
  step.body = instructions.parse();
  const int64_t reductions = reader.next(0, kTileRegisters, "the number of reductions");
  std::vector<int64_t> groups;
  for (int core = 0; core < head.cores; core++) groups.push_back(core);
  if (reductions > 0) {
    step.reduce_lanes = reader.next(0, 1, "whether lanes are reduced") == 1;
    if (reader.next(0, 1, "whether there are groups") == 1) groups = reader.list(head.cores);
    parse_reductions(reader, step, reductions, instructions);
    step.epilogue = instructions.parse();
  } else if (step.reduced_dims > 0) {
    reader.fail("it has reduced dimensions, but reduces nothing");
  }
  step.teams = teams_of(groups);
  check_moments(reader, step);
  check_teams(reader, step, extents);
  plan_walks(step, head, extents);
  return step;
}

void run_tile(const TileStep& step, const StepHead& head, const RunContext& context) {
  run_tile(step, head, context, best_simd());
}

void run_tile(const TileStep& step, const StepHead& head, const RunContext& context, Simd simd) {
  if (step.elements == 0 && step.reductions.empty()) return;
  Machine machine{step, context, tile_table(simd), convert_table(simd), {}};
  machine.bases.reserve(head.cores * step.operands.size());
  for (int core = 0; core < head.cores; core++) {
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

}  // namespace spyre::card
