// Reading the words of a tile program, and planning how its points are walked.
#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <limits>
#include <map>
#include <string>

#include "tile/tile.h"

namespace spyre::card {
namespace {

// ---- Parsing ----------------------------------------------------------------------------------

constexpr int64_t kMaxInstructions = 4096;

// Checks that instructions read only registers that something has written. Bodies and epilogues
// have registers of their own.
class InstructionParser {
 public:
  InstructionParser(WordReader& reader, TileStep& step) : reader_(reader), step_(step) {}

  std::vector<TileInstruction> parse_body(int phase) {
    phase_ = phase;
    return parse(lanes_, phase);
  }
  std::vector<TileInstruction> parse_epilogue() { return parse(results_, kNoPhase); }

  void define_lanes(int64_t reg) { lanes_[reg] = 0; }
  void define_result(int64_t reg) { results_[reg] = 0; }
  // That a reduction reads.
  bool is_defined(int64_t reg) {
    if (lanes_[reg] == kUnwritten) return false;
    note_use(static_cast<int>(reg));
    return true;
  }

 private:
  static constexpr int kUnwritten = -1, kNoPhase = -1;

  std::vector<TileInstruction> parse(std::array<int, kTileRegisters>& written, int phase) {
    written_ = &written;
    in_body_ = phase != kNoPhase;
    const int64_t count = reader_.next(0, kMaxInstructions, "the number of instructions");
    std::vector<TileInstruction> instructions;
    for (int64_t i = 0; i < count; i++) add(instructions, parse_one());
    return instructions;
  }

  void note_use(int reg) {
    std::vector<int>& kept_on = step_.kept_on;
    const bool known = std::find(kept_on.begin(), kept_on.end(), reg) != kept_on.end();
    if (lanes_[reg] < phase_ && !known) kept_on.push_back(reg);
  }

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
      case SPREAD:
        if (!in_body_ || phase_ == 0) reader_.fail("it spreads results before there are any");
        if (results_[reg(words[2])] == kUnwritten) {
          reader_.fail("it spreads result " + std::to_string(words[2]) + " before it is written");
        }
        in.a = static_cast<int>(words[2]);
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
    if ((*written_)[reg(number)] == kUnwritten) {
      reader_.fail("it reads register " + std::to_string(number) + " before it writes it");
    }
    if (in_body_) note_use(static_cast<int>(number));
    return static_cast<int>(number);
  }
  int output(int64_t number) {
    (*written_)[reg(number)] = std::max(phase_, 0);
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

  static std::array<int, kTileRegisters> unwritten() {
    std::array<int, kTileRegisters> none;
    none.fill(kUnwritten);
    return none;
  }

  WordReader& reader_;
  TileStep& step_;
  // By register the phase that wrote it last.
  std::array<int, kTileRegisters> lanes_ = unwritten(), results_ = unwritten();
  std::array<int, kTileRegisters>* written_ = &lanes_;
  bool in_body_ = true;
  int phase_ = 0;
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

void parse_reductions(WordReader& reader, TilePhase& phase, int64_t count,
                      InstructionParser& instructions) {
  for (int64_t i = 0; i < count; i++) {
    TileReduction reduction;
    const int64_t op = reader.next(0, kShortExx2, "the operation of a reduction");
    reduction.few_bits = op == kShortExx2;
    reduction.op = reduce_op(op);
    reduction.source =
        static_cast<int>(reader.next(0, kTileRegisters - 1, "the source of a reduction"));
    const int results = reduction.op == ReduceOp::EXX2 ? 2 : 1;
    reduction.destination = static_cast<int>(
        reader.next(0, kTileRegisters - results, "the destination of a reduction"));
    if (!instructions.is_defined(reduction.source)) {
      reader.fail("it reduces register " + std::to_string(reduction.source) +
                  " before it writes it");
    }
    phase.reductions.push_back(reduction);
  }
  for (const TileReduction& reduction : phase.reductions) {
    instructions.define_result(reduction.destination);
    if (reduction.op == ReduceOp::EXX2) instructions.define_result(reduction.destination + 1);
  }
}

// ---- Instructions saved -------------------------------------------------------------------------

// How quick instructions could have what this instruction puts in a register; REGISTER: not.
SecondInput second_input(const TileStep& step, const TileInstruction& in) {
  if (in.opcode == SPREAD && step.reduce_lanes) return SecondInput::RESULT;
  if (in.opcode != LOAD || !is_unlimited(step.operands[in.a])) return SecondInput::REGISTER;
  const TileOperand& operand = step.operands[in.a];
  const auto still = std::count(operand.strides.begin(), operand.strides.end(), 0);
  if (operand.form == OperandForm::VECTOR) {
    return still > 0 ? SecondInput::OPERAND : SecondInput::REGISTER;
  }
  const bool all = still == static_cast<int64_t>(operand.strides.size());
  return all ? SecondInput::STILL_OPERAND : SecondInput::REGISTER;
}

// What has one value for each group and only quick instructions read, as their second input, need
// not be written to all lanes.
class SpreadFolder {
 public:
  SpreadFolder(const TileStep& step, TilePhase& phase) : step_(step), phase_(phase) {}

  void run() {
    for (size_t at = 0; at < phase_.body.size();) {
      if (!fold(at)) at++;
    }
  }

 private:
  bool fold(size_t at) {
    std::vector<TileInstruction>& body = phase_.body;
    const TileInstruction source = body[at];
    const SecondInput kind = second_input(step_, source);
    if (kind == SecondInput::REGISTER || lasts(source.destination)) return false;
    const int reg = source.destination;
    size_t end = at + 1;
    int reads = 0;
    bool stored = false;
    for (bool overwritten = false; end < body.size() && !overwritten; end++) {
      const TileInstruction& in = body[end];
      if (in.c == reg || reads_first(in, reg)) return false;
      if (reads_second(in, reg)) {
        if (table_.by_group[in.opcode].plain == nullptr) return false;
        // What is loaded late must not have been overwritten, and many lanes are loaded once.
        if (kind != SecondInput::RESULT && stored) return false;
        if (kind == SecondInput::OPERAND && ++reads > 1) return false;
      }
      stored = stored || in.opcode == STORE;
      overwritten = in.opcode != STORE && in.destination == reg;
    }
    for (size_t i = at + 1; i < end; i++) {
      TileInstruction& in = body[i];
      if (swaps(in) && in.a == reg) std::swap(in.a, in.b);
      if (!reads_second(in, reg)) continue;
      in.b = source.a;
      in.b_is = kind;
    }
    body.erase(body.begin() + static_cast<int64_t>(at));
    return true;
  }

  // The register is live after the body.
  bool lasts(int reg) const {
    const auto& kept_on = step_.kept_on;
    return std::find(kept_on.begin(), kept_on.end(), reg) != kept_on.end() ||
           std::any_of(phase_.reductions.begin(), phase_.reductions.end(),
                       [&](const TileReduction& r) { return r.source == reg; });
  }
  static bool swaps(const TileInstruction& in) {
    return (in.opcode == ADD || in.opcode == MUL) && in.b_is == SecondInput::REGISTER &&
           in.a != in.b;
  }
  // In a way that cannot be turned into reading it second.
  static bool reads_first(const TileInstruction& in, int reg) {
    return in.opcode != LOAD && in.opcode != SPREAD && in.a == reg && !swaps(in);
  }
  static bool reads_second(const TileInstruction& in, int reg) {
    return in.b_is == SecondInput::REGISTER && (in.b == reg || (swaps(in) && in.a == reg));
  }

  const TileStep& step_;
  TilePhase& phase_;
  const TileTable& table_ = tile_table(Simd::PORTABLE);
};

// Two instructions on the same register that one pass can do.
void join_pairs(std::vector<TileInstruction>& body) {
  for (size_t at = 0; at + 1 < body.size(); at++) {
    TileInstruction& first = body[at];
    const TileInstruction& second = body[at + 1];
    const bool both = first.b_is == second.b_is &&
                      (first.b_is == SecondInput::RESULT || first.b_is == SecondInput::OPERAND);
    const bool in_place = second.a == first.destination && second.destination == first.destination;
    if (!both || !in_place || first.then_round || first.is_pair() ||
        pair_of(first.opcode, second.opcode) == kNoPair) {
      continue;
    }
    first.then_opcode = second.opcode;
    first.c = second.b;
    first.then_round = second.then_round;
    body.erase(body.begin() + static_cast<int64_t>(at) + 1);
  }
}

// Which results of a phase are read by later ones, one value for a group of lanes.
void note_spread(TileStep& step) {
  for (size_t i = 0; i + 1 < step.phases.size(); i++) {
    TilePhase& phase = step.phases[i];
    std::array<bool, kTileRegisters> written = {}, read = {};
    for (const TileReduction& reduction : phase.reductions) {
      written[reduction.destination] = true;
      if (reduction.op == ReduceOp::EXX2) written[reduction.destination + 1] = true;
    }
    for (const TileInstruction& in : phase.epilogue) {
      if (in.opcode != STORE) written[in.destination] = true;
    }
    for (size_t later = i + 1; later < step.phases.size(); later++) {
      for (const TileInstruction& in : step.phases[later].body) {
        if (in.b_is != SecondInput::RESULT) continue;
        read[in.b] = true;
        if (in.is_pair()) read[in.c] = true;
      }
    }
    for (int reg = 0; reg < kTileRegisters; reg++) {
      if (written[reg] && read[reg]) phase.spread.push_back(reg);
    }
  }
}

void parse_further_phases(WordReader& reader, TileStep& step, InstructionParser& instructions) {
  constexpr int64_t kMaxPhases = 64;
  const int64_t further = reader.next(0, kMaxPhases, "the number of further phases");
  for (int64_t i = 0; i < further; i++) {
    TilePhase& phase = step.phases.emplace_back();
    phase.body = instructions.parse_body(static_cast<int>(i) + 1);
    const int64_t reductions = reader.next(0, kTileRegisters, "the number of reductions");
    if (reductions == 0 && i + 1 < further) reader.fail("a phase before the last reduces nothing");
    parse_reductions(reader, phase, reductions, instructions);
    if (reductions > 0) phase.epilogue = instructions.parse_epilogue();
  }
}

// Whether epilogues can do with one value for each kept point.
bool is_compact(const TileStep& step) {
  if (!step.reduce_lanes) return false;
  std::array<bool, kTileRegisters> uniform = {};
  for (const TilePhase& phase : step.phases) {
    for (const TileReduction& reduction : phase.reductions) {
      uniform[reduction.destination] = true;
      if (reduction.op == ReduceOp::EXX2) uniform[reduction.destination + 1] = true;
    }
    for (const TileInstruction& in : phase.epilogue) {
      const auto is_vector = [&](int operand) {
        return step.operands[operand].form == OperandForm::VECTOR;
      };
      if (in.opcode == WIDEN || in.opcode == NARROW) return false;
      if (in.opcode == STORE) {
        if (is_vector(in.destination) && !uniform[in.a]) return false;
      } else if (in.opcode == LOAD) {
        uniform[in.destination] = !is_vector(in.a);
      } else {
        bool all = true;
        for (int reg : {in.a, in.b, in.c}) all = all && (reg < 0 || uniform[reg]);
        uniform[in.destination] = all;
      }
    }
  }
  return true;
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
  bool moments = false;
  for (const TilePhase& phase : step.phases) {
    for (const TileReduction& r : phase.reductions) moments = moments || r.op == ReduceOp::EXX2;
  }
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
  const std::vector<TileInstruction>& body = step.phases[0].body;
  if (!step.reduces()) {
    for (const TileInstruction& in : body) {
      if (in.opcode == STORE && is_vector(in.destination)) return in.destination;
    }
  }
  for (const TileInstruction& in : body) {
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

void plan_walks(TileStep& step, int cores, const std::vector<int64_t>& extents) {
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
  for (int core = 0; core < cores; core++) {
    const int64_t* own = extents.data() + core * dims;
    const auto [at, is_new] =
        known.try_emplace({own, own + dims}, static_cast<int>(step.walks.size()));
    if (is_new) step.walks.push_back(make_walk(step, own, leading, stick_matters));
    step.walk_of.push_back(at->second);
    const TileWalk& walk = step.walks[at->second];
    step.elements += walk.kept_points * walk.reduced_points * step.lanes;
  }
}

// ---- Cores that go on from each other ---------------------------------------------------------

// Cores whose shares are adjacent along a kept dimension are walked as one core: which
// core computes a point does not change it, and short walks cost more than long ones.
class CoreMerger {
 public:
  CoreMerger(TileStep& step, std::vector<int64_t>& extents, size_t cores)
      : step_(step), extents_(extents), cores_(cores) {}

  void run() {
    if (!is_possible()) return;
    for (bool again = true; again && cores_ > 1;) {
      again = false;
      for (int dim = 0; dim < step_.kept_dims && !again; dim++) {
        // The longest stretches of neighbours first.
        for (size_t length = cores_; length > 1 && !again; length--) {
          again = cores_ % length == 0 && follows(dim, length);
          if (again) merge(dim, length);
        }
      }
    }
  }

 private:
  bool is_possible() const {
    const size_t dims = step_.kept_dims + step_.reduced_dims;
    for (size_t core = 1; core < cores_; core++) {
      const auto first = extents_.begin();
      if (!std::equal(first, first + dims, first + core * dims)) return false;
      if (step_.tails[core] != step_.tails[0]) return false;
    }
    return std::all_of(step_.operands.begin(), step_.operands.end(), [](const auto& operand) {
      return operand.address.space != Space::LX &&
             std::all_of(operand.limits.begin(), operand.limits.end(),
                         [](int64_t limit) { return limit < 0; });
    });
  }

  // In every stretch of cores each one begins where the one before it ends.
  bool follows(int dim, size_t length) const {
    if (dim == step_.stick_dim && !step_.tails[0].empty()) return false;
    for (const TileOperand& operand : step_.operands) {
      const int64_t step = extents_[dim] * operand.strides[dim];
      const std::vector<int64_t>& offsets = operand.address.offsets;
      for (size_t core = 0; core < cores_; core++) {
        if (core % length != 0 && offsets[core] != offsets[core - 1] + step) return false;
      }
    }
    return true;
  }

  void merge(int dim, size_t length) {
    const size_t dims = step_.kept_dims + step_.reduced_dims;
    cores_ /= length;
    extents_.resize(cores_ * dims);
    for (size_t core = 0; core < cores_; core++) {
      extents_[core * dims + dim] *= static_cast<int64_t>(length);
      for (TileOperand& operand : step_.operands) {
        operand.address.offsets[core] = operand.address.offsets[core * length];
      }
    }
    for (TileOperand& operand : step_.operands) {
      operand.address.offsets.resize(cores_);
      operand.limits.resize(cores_);
    }
    step_.tails.resize(cores_);
  }

  TileStep& step_;
  std::vector<int64_t>& extents_;
  size_t cores_;
};

void check_teams(WordReader& reader, const TileStep& step, const std::vector<int64_t>& extents) {
  const int dims = step.kept_dims + step.reduced_dims;
  for (const TileTeam& team : step.teams) {
    const auto first = extents.begin() + team.cores[0] * dims;
    for (int core : team.cores) {
      if (step.phases.size() > 1 && team.cores.size() > 1) {
        reader.fail("cores share results, but there are further phases");
      }
      if (!std::equal(first, first + step.kept_dims, extents.begin() + core * dims)) {
        reader.fail("cores " + std::to_string(team.cores[0]) + " and " + std::to_string(core) +
                    " are in one group but have different kept extents");
      }
    }
  }
}

}  // namespace

std::vector<TileInstruction> parse_instructions(WordReader& reader, TileStep& step,
                                                std::initializer_list<int> defined) {
  InstructionParser instructions(reader, step);
  for (int reg : defined) instructions.define_lanes(reg);
  return instructions.parse_body(0);
}

TileStep parse_tile(WordReader& reader, const StepHead& head) {
  TileStep step;
  step.lanes = static_cast<int>(reader.next(32, 128, "the number of lanes"));
  if (!std::has_single_bit(static_cast<unsigned>(step.lanes))) {
    reader.fail("groups have " + std::to_string(step.lanes) + " lanes, not 32, 64 or 128");
  }
  step.kept_dims = static_cast<int>(reader.next(0, kMaxTileDims, "the number of kept dimensions"));
  step.reduced_dims = static_cast<int>(
      reader.next(0, kMaxTileDims - step.kept_dims, "the number of reduced dimensions"));
  const int dims = step.kept_dims + step.reduced_dims;
  step.stick_dim = static_cast<int>(reader.next(-1, dims - 1, "the stick dim"));
  std::vector<int64_t> extents = reader.list(static_cast<size_t>(head.cores) * dims);
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
  step.phases.emplace_back().body = instructions.parse_body(0);
  const int64_t reductions = reader.next(0, kTileRegisters, "the number of reductions");
  std::vector<int64_t> groups;
  for (int core = 0; core < head.cores; core++) groups.push_back(core);
  if (reductions > 0) {
    step.reduce_lanes = reader.next(0, 1, "whether lanes are reduced") == 1;
    if (reader.next(0, 1, "whether there are groups") == 1) groups = reader.list(head.cores);
    parse_reductions(reader, step.phases[0], reductions, instructions);
    step.phases[0].epilogue = instructions.parse_epilogue();
    parse_further_phases(reader, step, instructions);
    step.compact = is_compact(step);
  } else if (step.reduced_dims > 0) {
    reader.fail("it has reduced dimensions, but reduces nothing");
  }
  for (TilePhase& phase : step.phases) {
    SpreadFolder(step, phase).run();
    join_pairs(phase.body);
  }
  note_spread(step);
  step.teams = teams_of(groups);
  check_moments(reader, step);
  check_teams(reader, step, extents);
  const bool share_results = step.teams.size() < groups.size();
  if (!share_results) {
    CoreMerger(step, extents, groups.size()).run();
    groups.resize(step.tails.size());
    step.teams = teams_of(groups);
  }
  plan_walks(step, static_cast<int>(step.tails.size()), extents);
  return step;
}

}  // namespace spyre::card
