// In reading order: sticks, operands, instructions, then one kind of step after the other.
#include "shadow_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>

#include "shadow_walk.h"

namespace spyre::card {
namespace {

constexpr uint64_t kZeroTag = 0x5EED0;               // of lanes that do not exist
constexpr uint64_t kOpaqueTag = 0x0FA9E;             // of what a scatter may have written
constexpr uint64_t kNextStick = 0xA24BAED4963EE407;  // between the tags of one group's sticks
constexpr uint64_t kVariance = 0x9FB21C651E98DF25;   // between the tags of mean and variance

bool is_commutative(int opcode) {
  switch (opcode) {
    case ADD:
    case MUL:
    case MAXIMUM:
    case MINIMUM:
    case EQ:
    case NE:
    case INT_ADD:
    case INT_MUL:
    case INT_MAX_OF:
    case INT_MIN_OF:
    case INT_EQ:
    case INT_NE:
      return true;
    default:
      return false;
  }
}

// The number of ones at the low end, if there are no others; else -1.
int prefix_of(const Bits& bits) {
  const int low = std::countr_one(bits.low), high = std::countr_one(bits.high);
  if (low < 64) return bits.high == 0 && bits.low >> low == 0 ? low : -1;
  return high == 64 || bits.high >> high == 0 ? 64 + high : -1;
}

// Bytes of a stick as lanes of so many bytes: all of them must be there.
Bits lanes_of(const Bits& data, int bytes) {
  if (const int prefix = prefix_of(data); prefix >= 0) return Bits::range(0, prefix / bytes);
  Bits lanes;
  for (int lane = 0; lane < kStickBytes / bytes; lane++) {
    if (data.covers(Bits::range(lane * bytes, bytes))) lanes = lanes | Bits::range(lane, 1);
  }
  return lanes;
}

Bits bytes_of_lanes(const Bits& lanes, int bytes) {
  if (const int prefix = prefix_of(lanes); prefix >= 0) {
    return Bits::range(0, std::min<int>(prefix * bytes, kStickBytes));
  }
  Bits data;
  for (int lane = 0; lane < kStickBytes / bytes; lane++) {
    if (lanes.has(lane)) data = data | Bits::range(lane * bytes, bytes);
  }
  return data;
}

Bits shifted_left(const Bits& bits, int by) {
  if (by == 0) return bits;
  if (by >= 128) return {};
  if (by >= 64) return {0, bits.low << (by - 64)};
  return {bits.low << by, bits.high << by | bits.low >> (64 - by)};
}

Bits shifted_right(const Bits& bits, int by) {
  if (by == 0) return bits;
  if (by >= 128) return {};
  if (by >= 64) return {bits.high >> (by - 64), 0};
  return {bits.low >> by | bits.high << (64 - by), bits.high >> by};
}

// Which of 64 columns a lane of a pair of sticks in the arrangement DL16_TO_FP32 holds.
int arranged_column(int lane) {
  const int stick = lane / 32, position = lane % 32;
  return position / 4 * 8 + stick * 4 + position % 4;
}

Bits arranged(const Bits& lanes, bool widen, int count) {
  Bits result;
  for (int lane = 0; lane < count; lane++) {
    const int block = lane / 64 * 64, column = block + arranged_column(lane % 64);
    const int from = widen ? column : lane, to = widen ? lane : column;
    if (lanes.has(from)) result = result | Bits::range(to, 1);
  }
  return result;
}

// Looked up at every access: in tables.
struct FormatSizes {
  std::array<int, kNumDataFormats> bytes{}, per_stick{};
  FormatSizes() {
    for (int i = 0; i < kNumDataFormats; i++) {
      per_stick[i] = static_cast<int>(elems_per_stick(static_cast<DataFormat>(i)));
      if (per_stick[i] > 0) bytes[i] = static_cast<int>(kStickBytes) / per_stick[i];
    }
  }
};
const FormatSizes kSizes;

int bytes_per_lane(DataFormat format) { return kSizes.bytes[static_cast<int>(format)]; }
int lanes_per_stick(DataFormat format) { return kSizes.per_stick[static_cast<int>(format)]; }

// An index of several dimensions, the last one fastest.
class Counter {
 public:
  Counter(const int64_t* extents, int dims) : extents_(extents, extents + dims), index_(dims) {
    for (int64_t extent : extents_) count_ *= extent;
  }
  int64_t count() const { return count_; }
  int64_t operator[](int dim) const { return index_[dim]; }
  void next() {
    for (int d = static_cast<int>(index_.size()) - 1; d >= 0; d--) {
      if (++index_[d] < extents_[d]) return;
      index_[d] = 0;
    }
  }
  int64_t dot(const std::vector<int64_t>& strides, int first = 0) const {
    int64_t sum = 0;
    for (size_t d = 0; d < index_.size(); d++) sum += index_[d] * strides[first + d];
    return sum;
  }

 private:
  std::vector<int64_t> extents_, index_;
  int64_t count_ = 1;
};

// The bytes from the first to the last place that a core walks over, in relation to its start.
std::pair<int64_t, int64_t> hull(const int64_t* extents, const std::vector<int64_t>& strides,
                                 int dims) {
  int64_t low = 0, high = kStickBytes;
  for (int d = 0; d < dims; d++) {
    if (extents[d] == 0) return {0, 0};
    const int64_t last = (extents[d] - 1) * strides[d];
    (last < 0 ? low : high) += last;
  }
  return {low, high};
}

}  // namespace

// ---- Sticks -------------------------------------------------------------------------------------

ShadowRun::ShadowRun(CheckedLaunch& launch, Flow flow, size_t number, const ShadowStep& step,
                     std::span<const int64_t> loop_index)
    : launch_(launch),
      flow_(flow),
      number_(number),
      step_(step),
      addresses_(addresses_of(step)),
      cores_(step.head.cores) {
  Sanitizer& sanitizer = launch.sanitizer_;
  for (const OperandAddress* address : addresses_) {
    for (int core = 0; core < cores_; core++) {
      int64_t offset = address->offsets[core];
      for (size_t i = 0; i < address->loop_strides.size(); i++) {
        offset += address->loop_strides[i] * loop_index[i];
      }
      Where where{.shadow = &sanitizer.device(), .base = offset};
      if (address->space == Space::LX) {
        if (core < sanitizer.scratchpads()) {
          where.shadow = &sanitizer.scratchpad(core);
          where.seed = core;
          where.high = static_cast<int64_t>(where.shadow->bytes());
        }
      } else if (address->space == Space::ARGUMENT) {
        if (static_cast<size_t>(address->argument) < launch.blocks_.size()) {
          const CheckedLaunch::Range& block = launch.blocks_[address->argument];
          where.base += block.low;
          where.low = where.start = block.low;
          where.seed = launch.seed_of(address->argument);
          where.high = block.high;
        }
      } else {
        constexpr uint64_t kFixed = 1 << 30;
        const auto at = static_cast<Address>(offset);
        where.seed = kFixed;
        where.base = static_cast<int64_t>(sanitizer.offset_of(at));
        if (const Block* block = sanitizer.memory().find(at)) {
          where.low = static_cast<int64_t>(sanitizer.offset_of(block->address));
          where.high = where.low + static_cast<int64_t>(block->size);
        }
      }
      if (flow_ == Flow::PROGRAM) find_buffer(where, *address);
      where_.push_back(where);
    }
  }
}

// An operand in the pool or in a scratchpad may touch one intermediate and no other.
void ShadowRun::find_buffer(Where& where, const OperandAddress& address) {
  if (where.high == where.low) return;
  const int64_t within = where.base - where.start;
  where.buffer = launch_.buffer_at(number_, address.space, address.argument, within);
  if (where.buffer == nullptr) return;
  where.owner = static_cast<uint16_t>(launch_.number_of(*where.buffer));
  where.low = where.start + where.buffer->offset;
  where.high = std::min(where.high, where.low + where.buffer->bytes);
}

void ShadowRun::report(const char* what, int number, int core, int64_t offset,
                       const std::string& more) {
  if (flow_ == Flow::REFERENCE) return;
  Sanitizer& sanitizer = launch_.sanitizer_;
  const Where& place = where(number, core);
  const OperandAddress& address = *addresses_[number];
  const int64_t at = place.base + offset;
  const bool in_lx = address.space == Space::LX;
  Finding finding;
  finding.what = what;
  finding.kernel = launch_.program_->kernel;
  finding.operation = launch_.step_name(number_);
  finding.source = launch_.step_source(number_);
  finding.core = core;
  const int64_t within = in_lx ? at : at - place.start;
  finding.tensor = launch_.tensor_name(address.space, address.argument, place.buffer);
  finding.address = in_lx ? "LX + " + std::to_string(at)
                          : hex_address(sanitizer.address_of(static_cast<size_t>(at))) + " (" +
                                (within < 0 ? "" : "+") + std::to_string(within) + ")";
  if (!more.empty()) finding.address += ", " + more;
  if (at >= 0 && at + kStickBytes <= static_cast<int64_t>(place.shadow->bytes())) {
    const StickState& state = place.shadow->state(at / kStickBytes);
    finding.last_writer = sanitizer.describe_run(state.run, state.core);
  } else {
    finding.last_writer = "nobody: there is no such memory";
  }
  launch_.report(std::move(finding), static_cast<int64_t>(number));
}

bool ShadowRun::is_inside(int number, int core, int64_t offset, bool writes) {
  const Where& place = where(number, core);
  const int64_t at = place.base + offset;
  if (at >= place.low && at + kStickBytes <= place.high && at % kStickBytes == 0) return true;
  if (flow_ == Flow::REFERENCE) return false;
  const Space space = addresses_[number]->space;
  // Scratchpads in one piece have no shadow: only programs whose files are gone run so.
  if (space == Space::SHARED) return false;
  launch_.must_stop_ = true;
  if (at % kStickBytes != 0) {
    report(writes ? "writes a stick that does not begin at a multiple of 128 bytes"
                  : "reads a stick that does not begin at a multiple of 128 bytes",
           number, core, offset);
  } else if (space == Space::LX && place.buffer == nullptr) {
    report(writes ? "writes outside of the scratchpad" : "reads outside of the scratchpad", number,
           core, offset, "it has " + std::to_string(place.high) + " bytes");
  } else if (place.high == place.low) {
    report(writes ? "writes to memory that no tensor has: it was freed or never allocated"
                  : "reads memory that no tensor has: it was freed or never allocated",
           number, core, offset);
  } else {
    report(writes ? "writes outside of its tensor" : "reads outside of its tensor", number, core,
           offset, "the tensor has " + std::to_string(place.high - place.low) + " bytes");
  }
  return false;
}

bool ShadowRun::read_stick(int number, int core, int64_t offset, Bits& data, uint64_t& tag,
                           bool quiet) {
  if (!is_inside(number, core, offset, false)) {
    data = Bits::full();
    tag = kZeroTag;
    return false;
  }
  const Where& place = where(number, core);
  const size_t stick = (place.base + offset) / kStickBytes;
  tag = place.shadow->tag(flow_, stick, launch_.number_, place.initial_tag(place.base + offset));
  data = Bits::full();
  if (flow_ == Flow::REFERENCE) return true;
  const StickState& state = place.shadow->state(stick);
  if (state.run == NOBODY || state.run == FREED) {
    if (quiet) {
      data = {};
      return true;
    }
    report(state.run == FREED ? "reads memory of a tensor that was freed"
                              : "reads bytes that nobody wrote",
           number, core, offset);
    return true;
  }
  if (state.run == run_ && state.core != core) {
    report("reads a stick that another core writes in the same step", number, core, offset);
  } else if (place.owner != 0 && state.buffer != 0 && state.buffer != place.owner &&
             state.run >= launch_.first_run_) {
    const auto& other = launch_.program_->names.buffers[state.buffer - 1];
    report("reads a buffer after its space was given away", number, core, offset,
           "which holds " + other.name + " now");
  }
  data = state.data;
  return true;
}

void ShadowRun::note_written(const Where& place, int number, int core, int64_t at) {
  const OperandAddress& address = *addresses_[number];
  if (address.space == Space::DEVICE) return;
  CheckedLaunch::Range& range =
      address.space == Space::LX ? launch_.written_lx_[core] : launch_.written_[address.argument];
  if (range.shadow == nullptr) {
    range = {place.shadow, at, at + kStickBytes};
  } else {
    range.low = std::min(range.low, at);
    range.high = std::max(range.high, at + kStickBytes);
  }
}

bool ShadowRun::write_stick(int number, int core, int64_t offset, const Bits& data, uint64_t tag) {
  if (!is_inside(number, core, offset, true)) return false;
  const Where& place = where(number, core);
  const int64_t at = place.base + offset;
  const size_t stick = at / kStickBytes;
  note_written(place, number, core, at);
  place.shadow->set_tag(flow_, stick, launch_.number_, tag);
  if (flow_ == Flow::REFERENCE) return true;
  StickState& state = place.shadow->state(stick);
  if (state.run == run_ && state.core != core) {
    report("writes a stick that another core writes in the same step", number, core, offset);
  }
  state = {data, run_, static_cast<uint16_t>(core), place.owner};
  return true;
}

void ShadowRun::check_span(int number, int core, int64_t low, int64_t high) {
  const int64_t most = launch_.sanitizer_.span_bytes();
  if (high - low <= most || flow_ == Flow::REFERENCE) return;
  report("reaches over more memory than a core can address", number, core, low,
         "a span of " + human_size(high - low) + ", allowed are " + human_size(most));
}

// ---- Operands -----------------------------------------------------------------------------------

ShadowRun::Register ShadowRun::load(const TileOperand& operand, int number, int core,
                                    int64_t offset, int64_t sticks_left, int lanes) {
  Register value;
  if (sticks_left <= 0) {
    value.tag = kZeroTag;
    return value;
  }
  const int bytes = bytes_per_lane(operand.format);
  Bits data;
  if (operand.form != OperandForm::VECTOR) {
    read_stick(number, core, offset, data, value.tag);
    if (operand.form == OperandForm::EXX2_VARIANCE) value.tag += kVariance;
    if (!data.covers(Bits::range(0, bytes))) value = {{}, value.tag, number, offset};
    return value;
  }
  const int per_stick = lanes_per_stick(operand.format);
  const int sticks = lanes / per_stick;
  if (sticks == 1) {
    read_stick(number, core, offset, data, value.tag);
    if (!data.all()) value = {lanes_of(data, bytes), value.tag, number, offset};
    return value;
  }
  // Sticks that a group was stored to belong together: their tags follow each other. Some of them
  // may be padding altogether, but not all.
  bool together = true, any_data = false;
  const int64_t first = offset;
  uint64_t all = 0;
  value.data = {};
  for (int i = 0; i < sticks; i++, offset += operand.sub_stride) {
    uint64_t tag = kZeroTag;
    data = Bits::full();
    if (i < sticks_left) {
      read_stick(number, core, offset, data, tag, /*quiet=*/true);
      any_data = any_data || !data.none();
      if (i == 0) value.tag = tag;
      together = together && tag == value.tag + i * kNextStick;
    }
    if (!data.all() && value.operand < 0) {
      value.operand = number;
      value.offset = offset;
    }
    value.data = value.data | shifted_left(lanes_of(data, bytes), i * per_stick);
    all = mix(all, tag);
  }
  if (!any_data) {
    uint64_t ignored = 0;
    read_stick(number, core, first, data, ignored);
  }
  if (!together) value.tag = all;
  return value;
}

void ShadowRun::store(const TileOperand& operand, int number, int core, int64_t offset,
                      int64_t sticks_left, int lanes, const Register& value,
                      const Register* second) {
  if (sticks_left <= 0) return;
  const bool is_first = value.data.has(0);
  switch (operand.form) {
    case OperandForm::VECTOR:
      break;
    case OperandForm::EXX2_STORE: {
      const bool as_made = second->tag == value.tag + kVariance;
      const uint64_t tag = as_made ? value.tag : mix(value.tag, second->tag);
      write_stick(number, core, offset, is_first ? Bits::full() : Bits{}, tag);
      return;
    }
    default:
      write_stick(number, core, offset, is_first ? Bits::full() : Bits{}, value.tag);
      return;
  }
  const int bytes = bytes_per_lane(operand.format);
  const int per_stick = lanes_per_stick(operand.format);
  for (int i = 0; i < lanes / per_stick && i < sticks_left; i++, offset += operand.sub_stride) {
    const Bits own = shifted_right(value.data, i * per_stick) & Bits::range(0, per_stick);
    write_stick(number, core, offset, bytes_of_lanes(own, bytes), value.tag + i * kNextStick);
  }
}

// ---- Instructions -------------------------------------------------------------------------------

void ShadowRun::execute(const Code& code, std::span<const TileOperand> operands, int core,
                        const int64_t* offsets, int64_t group, int lanes, Register* registers,
                        const Register* results) {
  // Operands of a product's epilogue are numbered behind x and y.
  const int first = static_cast<int>(addresses_.size() - operands.size());
  for (const ShadowInstruction& in : code) {
    switch (in.opcode) {
      case LOAD: {
        const int64_t left = sticks_left(operands[in.a], core, group, lanes);
        registers[in.destination] =
            load(operands[in.a], first + in.a, core, offsets[in.a], left, lanes);
        break;
      }
      case STORE: {
        const TileOperand& operand = operands[in.destination];
        const int64_t left = sticks_left(operand, core, group, lanes);
        store(operand, first + in.destination, core, offsets[in.destination], left, lanes,
              registers[in.a], in.b >= 0 ? &registers[in.b] : nullptr);
        break;
      }
      case ROUND:
      case COPY:
        registers[in.destination] = registers[in.a];
        break;
      case SPREAD: {
        // Where lanes are reduced the first one goes to all.
        Register value = results[in.a];
        if (std::get<ShadowTile>(step_.what).reduces_lanes) {
          value.data = value.data.has(0) ? Bits::full() : Bits{};
        }
        registers[in.destination] = value;
        break;
      }
      case WIDEN:
      case NARROW: {
        Register value = registers[in.a];
        const Bits used = Bits::range(0, lanes);
        if (!value.data.covers(used)) {
          value.data = arranged(value.data, in.opcode == WIDEN, lanes);
        }
        registers[in.destination] = value;
        break;
      }
      default: {
        Register value;
        uint64_t tags[3] = {0, 0, 0};
        int count = 0;
        const int inputs = inputs_of(in.opcode);
        for (int source : {in.a, in.b, in.c}) {
          if (count == inputs) break;
          const Register& input = registers[source];
          value.data = value.data & input.data;
          if (input.operand >= 0 && value.operand < 0) {
            value.operand = input.operand;
            value.offset = input.offset;
          }
          tags[count++] = input.tag;
        }
        if (is_commutative(in.opcode) && tags[1] < tags[0]) std::swap(tags[0], tags[1]);
        value.tag = mix(mix(mix(tags[0], tags[1]), tags[2]), mix(in.opcode, in.immediates));
        registers[in.destination] = value;
      }
    }
  }
}

void ShadowRun::add_up(const ShadowTile& step, const Register& value, const Bits& needed, int core,
                       Total& total) {
  Register& sum = total.value;
  if (!total.begun) {
    sum = Register{};
    total.begun = true;
  }
  const bool all = needed.covers(Bits::range(0, step.lanes));
  sum.tag += mix(value.tag, all ? 0 : mix(needed.low, needed.high));
  if (value.data.covers(step.reduces_lanes ? needed : Bits::range(0, step.lanes))) return;
  if (!step.reduces_lanes) {
    sum.data = sum.data & value.data;
    if (sum.operand < 0) {
      sum.operand = value.operand;
      sum.offset = value.offset;
    }
    return;
  }
  if (value.operand >= 0) {
    const int lane = value.data.first_missing_of(needed);
    report("reads padding as data: a reduction adds up lanes that hold none", value.operand, core,
           value.offset, "lane " + std::to_string(lane) + " of a group");
  }
}

// ---- Tile programs ------------------------------------------------------------------------------

void ShadowRun::run_tile(const ShadowTile& step) {
  for (int core = 0; core < cores_; core++) {
    for (size_t i = 0; i < step.operands.size(); i++) {
      const auto [low, high] = hull(step.extents_of(core), step.operands[i].strides, step.dims());
      check_span(static_cast<int>(i), core, low, high);
    }
  }
  for (const std::vector<int>& team : step.teams) run_team(step, team);
}

void ShadowRun::run_team(const ShadowTile& step, const std::vector<int>& team) {
  constexpr int kRegisters = 32;
  const int leader = team[0];
  const int operands = static_cast<int>(step.operands.size());
  const bool stick_kept = step.stick_dim >= 0 && step.stick_dim < step.kept;
  Counter kept(step.extents_of(leader), step.kept);
  std::vector<Counter> reduced_by_core;
  for (int core : team)
    reduced_by_core.emplace_back(step.extents_of(core) + step.kept, step.reduced);
  const int64_t kept_points = kept.count();
  std::vector<int64_t> kept_offsets(operands), offsets(operands);
  std::vector<Register> lanes, results(kRegisters);
  std::vector<Total> totals(kRegisters);
  for (int64_t k = 0; k < kept_points; k++, kept.next()) {
    for (int i = 0; i < operands; i++) kept_offsets[i] = kept.dot(step.operands[i].strides);
    const int64_t kept_group = stick_kept ? kept[step.stick_dim] : 0;
    for (size_t p = 0; p < step.phases.size(); p++) {
      const ShadowPhase& phase = step.phases[p];
      for (Total& total : totals) total.begun = false;
      for (size_t member = 0; member < team.size(); member++) {
        const int core = team[member];
        const int64_t* extents = step.extents_of(core);
        Counter& reduced = reduced_by_core[member];  // after its last point it is at the first one
        const int64_t points = reduced.count();
        if (lanes.size() < static_cast<size_t>(points * kRegisters)) {
          lanes.resize(points * kRegisters);
        }
        for (int64_t r = 0; r < points; r++, reduced.next()) {
          for (int i = 0; i < operands; i++) {
            offsets[i] = kept_offsets[i] + reduced.dot(step.operands[i].strides, step.kept);
          }
          int64_t group = kept_group;
          if (step.stick_dim >= step.kept) group = reduced[step.stick_dim - step.kept];
          Register* registers = lanes.data() + r * kRegisters;
          execute(phase.body, step.operands, core, offsets.data(), group, step.lanes, registers,
                  results.data());
          const bool last = step.stick_dim < 0 || group == extents[step.stick_dim] - 1;
          const Bits needed =
              step.reduces_lanes && last ? step.tails[core] : Bits::range(0, step.lanes);
          for (size_t i = 0; i < phase.reductions.size(); i++) {
            const ShadowReduction& reduction = phase.reductions[i];
            add_up(step, registers[reduction.source], needed, core, totals[i]);
          }
        }
      }
      if (phase.reductions.empty()) continue;
      for (size_t i = 0; i < phase.reductions.size(); i++) {
        const ShadowReduction& reduction = phase.reductions[i];
        Register value = totals[i].begun ? totals[i].value : Register{};
        value.tag = mix(value.tag, 2 * static_cast<int>(reduction.op) + step.reduces_lanes);
        results[reduction.destination] = value;
        if (reduction.op != ReduceOp::EXX2) continue;
        value.tag += kVariance;
        results[reduction.destination + 1] = value;
      }
      execute(phase.epilogue, step.operands, leader, kept_offsets.data(), kept_group, step.lanes,
              results.data(), nullptr);
    }
  }
}

// ---- Products -----------------------------------------------------------------------------------

namespace {
constexpr int kX = 0, kY = 1, kOut = 2;  // numbers of a product's operands
}

void ShadowRun::run_matmul(const ShadowMatmul& step) {
  for (const std::vector<int>& team : step.teams) run_product(step, team);
}

// One row of x over the depth of a core.
ShadowRun::Register ShadowRun::row_of_x(const ShadowMatmul& step, int core, int64_t offset,
                                        int64_t depth) {
  const int lanes = static_cast<int>(elems_per_stick(step.x.format));
  const int bytes = bytes_per_lane(step.x.format);
  Register row;
  for (int64_t k = 0; k < depth; k += lanes, offset += step.x.strides[step.batch + 1]) {
    Bits data;
    uint64_t tag = 0;
    read_stick(kX, core, offset, data, tag);
    row.tag = mix(row.tag, tag);
    const int used = static_cast<int>(std::min<int64_t>(lanes, depth - k));
    if (data.covers(Bits::range(0, used * bytes))) continue;
    const int lane = lanes_of(data, bytes).first_missing_of(Bits::range(0, used));
    report("reads padding as data: a product adds up lanes that hold none", kX, core, offset,
           "lane " + std::to_string(lane) + " of a stick");
  }
  row.tag = mix(row.tag, depth);
  return row;
}

// For each stick of the result what its columns of y hold.
std::vector<ShadowRun::Register> ShadowRun::columns_of_y(const ShadowMatmul& step, int core,
                                                         int64_t offset, int64_t columns,
                                                         int64_t depth, int out_lanes) {
  const int lanes = static_cast<int>(elems_per_stick(step.y.format));
  const int bytes = bytes_per_lane(step.y.format);
  const int64_t row_stride = step.y.strides[step.batch];
  const int64_t stick_stride = step.y.strides[step.batch + 1];
  const int64_t sticks = (columns + lanes - 1) / lanes;
  std::vector<Register> by_stick(sticks);
  for (int64_t k = 0; k < depth; k++) {
    for (int64_t s = 0; s < sticks; s++) {
      Bits data;
      uint64_t tag = 0;
      const int64_t at = offset + k * row_stride + s * stick_stride;
      read_stick(kY, core, at, data, tag);
      Register& column = by_stick[s];
      column.tag = mix(column.tag, tag);
      if (data.all()) continue;
      column.data = column.data & lanes_of(data, bytes);
      if (column.operand < 0) {
        column.operand = kY;
        column.offset = at;
      }
    }
  }
  std::vector<Register> result((columns + out_lanes - 1) / out_lanes);
  for (size_t i = 0; i < result.size(); i++) {
    const int64_t first = static_cast<int64_t>(i) * out_lanes;
    result[i].data = {};
    const int64_t end = std::min<int64_t>(first + out_lanes, columns);
    for (int64_t s = first / lanes; s * lanes < end; s++) {
      const Register& column = by_stick[s];
      result[i].tag = mix(result[i].tag, column.tag);
      if (column.operand >= 0) {
        result[i].operand = column.operand;
        result[i].offset = column.offset;
      }
      const int64_t shift = s * lanes - first;
      result[i].data =
          result[i].data |
          (shift < 0 ? shifted_right(column.data, static_cast<int>(-shift))
                     : shifted_left(column.data & Bits::range(0, lanes), static_cast<int>(shift)));
    }
    result[i].tag = mix(result[i].tag, first % lanes);
    result[i].data = result[i].data & Bits::range(0, static_cast<int>(end - first));
  }
  return result;
}

void ShadowRun::run_product(const ShadowMatmul& step, const std::vector<int>& team) {
  constexpr int kRegisters = 32;
  const int leader = team[0];
  const int64_t* extents = step.extents_of(leader);
  const int64_t rows = extents[step.batch], columns = extents[step.batch + 1];
  const int out_lanes = static_cast<int>(elems_per_stick(step.results[0].format));
  const int64_t sticks = (columns + out_lanes - 1) / out_lanes;
  if (rows == 0 || columns == 0) return;
  for (int core : team) {
    const int64_t* own = step.extents_of(core);
    std::vector<int64_t> x(own, own + step.batch), y = x, out = x;
    const auto sticks_of = [](int64_t elements, DataFormat format) {
      return (elements + elems_per_stick(format) - 1) / elems_per_stick(format);
    };
    x.insert(x.end(), {own[step.batch], sticks_of(own[step.batch + 2], step.x.format)});
    y.insert(y.end(), {own[step.batch + 2], sticks_of(columns, step.y.format)});
    out.insert(out.end(), {own[step.batch], sticks});
    const auto check = [&](int number, const std::vector<int64_t>& points,
                           const std::vector<int64_t>& strides) {
      const auto [low, high] = hull(points.data(), strides, step.batch + 2);
      check_span(number, core, low, high);
    };
    check(kX, x, step.x.strides);
    check(kY, y, step.y.strides);
    for (size_t i = 0; i < step.results.size(); i++) {
      check(kOut + static_cast<int>(i), out, step.results[i].strides);
    }
  }
  std::vector<int64_t> offsets(step.results.size());
  std::vector<Register> registers(kRegisters);
  std::vector<Register> sums(rows * sticks);
  std::map<int64_t, std::vector<Register>> known;  // columns of y by where they begin
  Counter batch(extents, step.batch);
  for (int64_t b = 0; b < batch.count(); b++, batch.next()) {
    for (Register& sum : sums) sum = Register{};
    for (int core : team) {
      const int64_t depth = step.extents_of(core)[step.batch + 2];
      const int64_t y_at = batch.dot(step.y.strides);
      const int64_t key = where(kY, core).base + y_at;
      auto entry = known.find(key);
      if (entry == known.end() || team.size() > 1) {
        entry =
            known.insert_or_assign(key, columns_of_y(step, core, y_at, columns, depth, out_lanes))
                .first;
      }
      for (int64_t m = 0; m < rows; m++) {
        const int64_t x_at = batch.dot(step.x.strides) + m * step.x.strides[step.batch];
        const Register row = row_of_x(step, core, x_at, depth);
        for (int64_t n = 0; n < sticks; n++) {
          const Register& column = entry->second[n];
          Register& sum = sums[m * sticks + n];
          sum.tag += mix(row.tag, column.tag);
          sum.data = sum.data & column.data;
          if (sum.operand < 0 && column.operand >= 0) {
            sum.operand = column.operand;
            sum.offset = column.offset;
          }
        }
      }
    }
    for (int64_t m = 0; m < rows; m++) {
      for (int64_t n = 0; n < sticks; n++) {
        for (size_t i = 0; i < offsets.size(); i++) {
          const std::vector<int64_t>& strides = step.results[i].strides;
          offsets[i] = batch.dot(strides) + m * strides[step.batch] + n * strides[step.batch + 1];
        }
        registers[0] = sums[m * sticks + n];
        execute(step.epilogue, step.results, leader, offsets.data(), 0, out_lanes, registers.data(),
                nullptr);
      }
    }
  }
}

// ---- Copies -------------------------------------------------------------------------------------

namespace {

// Numbers that a copy multiplies with, by the byte that an element goes to.
constexpr std::array<uint64_t, kStickBytes> kFactors = [] {
  std::array<uint64_t, kStickBytes> made{};
  for (size_t i = 0; i < made.size(); i++) made[i] = mix(i, 0xC0FFEE) | 1;
  return made;
}();

constexpr int64_t kRoom = 8;  // elements behind a row of numbers

// The bits of an element, by its first byte.
std::array<Bits, kStickBytes> element_bits(int bytes) {
  std::array<Bits, kStickBytes> made;
  for (int i = 0; i < kStickBytes; i++) made[i] = Bits::range(i, bytes);
  return made;
}

}  // namespace

// A stick of the result is a sum over its elements: where each came from, times where it went. An
// element is one number, whose lowest bit says whether it holds data.
void ShadowRun::run_copy(const ShadowCopy& step) {
  constexpr int kSource = 0, kDestination = 1;
  const int64_t bytes = step.source.elem_bytes;
  // First all sticks forget where they came from, then elements arrive.
  for (int core = 0; core < cores_; core++) {
    if (num_elements(step.destination.views[core]) > 0) forget_tags(step.destination, core);
  }
  std::vector<uint64_t> elements;
  for (int core = 0; core < cores_; core++) {
    const View& from = step.source.views[core];
    if (num_elements(from) == 0) continue;
    const Dims strides = numbering(from.sizes, kRoom);
    int64_t last_number = 0;
    for (size_t d = 0; d < strides.size(); d++) last_number += (from.sizes[d] - 1) * strides[d];
    elements.resize(last_number + 1);
    int64_t last = -1;
    Bits data;
    uint64_t tag = 0;
    const auto take = [&](const ElementRun& run) {
      int64_t at = run.device * bytes;
      uint64_t* element = elements.data() + run.number;
      for (int64_t i = 0; i < run.count; i++) {
        const int64_t stick = at & -kStickBytes;
        const int byte = static_cast<int>(at - stick);
        if (stick != last) read_stick(kSource, core, stick, data, tag);
        last = stick;
        const bool is_data = data.all() || data.covers(Bits::range(byte, static_cast<int>(bytes)));
        *element = ((tag + byte * kNextStick) & ~uint64_t{1}) | is_data;
        at += run.device_step * bytes;
        element += run.step;
      }
    };
    for_each_run(step.source.map, from, bytes, Replicas::FIRST_ONLY, strides, take);
    put_elements(step.destination, core, elements, kDestination);
  }
}

void ShadowRun::forget_tags(const ShadowCopy::Side& side, int core) {
  constexpr int kDestination = 1;
  const Where& place = where(kDestination, core);
  const int64_t bytes = side.elem_bytes;
  int64_t last = -1;
  const auto forget = [&](const ElementRun& run) {
    const int64_t step = run.device_step == 1 ? std::max<int64_t>(1, kStickBytes / bytes) : 1;
    for (int64_t i = 0;; i = std::min(i + step, run.count - 1)) {
      const int64_t at = (run.device + i * run.device_step) * bytes;
      const int64_t stick = at / kStickBytes * kStickBytes;
      if (stick != last && is_inside(kDestination, core, stick, true)) {
        note_written(place, kDestination, core, place.base + stick);
        const size_t number = (place.base + stick) / kStickBytes;
        place.shadow->set_tag(flow_, number, launch_.number_, 0);
      }
      last = stick;
      if (i == run.count - 1) return;
    }
  };
  for_each_run(side.map, side.views[core], bytes, Replicas::FILL_ALL,
               numbering(side.views[core].sizes), forget);
}

void ShadowRun::put_elements(const ShadowCopy::Side& side, int core,
                             const std::vector<uint64_t>& elements, int number) {
  const Where& place = where(number, core);
  const int64_t bytes = side.elem_bytes;
  int64_t last = -1;
  uint64_t sum = 0;
  Bits there, missing;  // of the stick that elements go to
  const auto bits_of = element_bits(static_cast<int>(bytes));
  const auto finish_stick = [&] {
    if (last < 0 || !is_inside(number, core, last, true)) return;
    const size_t stick = (place.base + last) / kStickBytes;
    const uint64_t tag = place.shadow->tag(flow_, stick, launch_.number_, 0);
    place.shadow->set_tag(flow_, stick, launch_.number_, tag + sum);
    if (flow_ == Flow::REFERENCE) return;
    StickState& state = place.shadow->state(stick);
    if (state.run == run_ && state.core != core) {
      report("writes a stick that another core writes in the same step", number, core, last);
    }
    state.run = run_;
    state.core = static_cast<uint16_t>(core);
    state.buffer = place.owner;
    state.data = state.data | there;
    state.data = {state.data.low & ~missing.low, state.data.high & ~missing.high};
  };
  const auto put = [&](const ElementRun& run) {
    int64_t at = run.device * bytes;
    const uint64_t* element = elements.data() + run.number;
    for (int64_t i = 0; i < run.count; i++) {
      const int64_t stick = at & -kStickBytes;
      const int byte = static_cast<int>(at - stick);
      if (stick != last) {
        finish_stick();
        last = stick;
        sum = 0;
        there = missing = {};
      }
      sum += (*element & ~uint64_t{1}) * kFactors[byte];
      const Bits& own = bits_of[byte];
      if (*element & 1) {
        there = there | own;
      } else {
        missing = missing | own;
      }
      at += run.device_step * bytes;
      element += run.step;
    }
  };
  const Dims strides = numbering(side.views[core].sizes, kRoom);
  for_each_run(side.map, side.views[core], bytes, Replicas::FILL_ALL, strides, put);
  finish_stick();
}

// ---- Gather, scatter, topk ----------------------------------------------------------------------

void ShadowRun::run_gather(const GatherStep& step) {
  constexpr int kValue = 0, kIndex = 1, kResult = 2;
  constexpr int64_t kIndicesPerStick = 32;
  Sanitizer& sanitizer = launch_.sanitizer_;
  for (int core = 0; core < cores_; core++) {
    Counter point(step.extents.data() + core * step.dims, step.dims);
    for (int64_t p = 0; p < point.count(); p++, point.next()) {
      const int64_t value_at = point.dot(step.value.strides);
      const int64_t out_at = point.dot(step.out.strides);
      const int64_t along = step.stick_dim < 0 ? 0 : step.first_index[core] + point[step.stick_dim];
      const int64_t element = point.dot(step.index.strides) +
                              along / kIndicesPerStick * step.stick_stride +
                              along % kIndicesPerStick * 4;
      const Where& place = where(kIndex, core);
      const int64_t at = place.base + element;
      const int64_t stick = at / kStickBytes * kStickBytes - place.base;
      const int byte = static_cast<int>(at % kStickBytes);
      Bits data;
      uint64_t tag = 0;
      if (!read_stick(kIndex, core, stick, data, tag)) continue;
      // Which row it is depends on data that the reference does not have: the first one stands for
      // all of them.
      uint64_t value_tag = 0;
      Bits ignored;
      if (step.scatters) {
        read_stick(kValue, core, value_at, ignored, value_tag);
      } else if (is_inside(kValue, core, value_at, false)) {
        const Where& value = where(kValue, core);
        const int64_t first_row = value.base + value_at;
        value_tag = value.shadow->tag(flow_, first_row / kStickBytes, launch_.number_,
                                      value.initial_tag(first_row));
      }
      const uint64_t result_tag = mix(mix(tag, byte), value_tag);
      if (flow_ == Flow::REFERENCE) {
        if (!step.scatters) write_stick(kResult, core, out_at, {}, result_tag);
        continue;
      }
      if (!data.covers(Bits::range(byte, 4))) {
        report("reads padding as data: an index that nobody wrote", kIndex, core, stick,
               "byte " + std::to_string(byte) + " of the stick");
        continue;
      }
      int32_t row = 0;
      const std::byte* memory = addresses_[kIndex]->space == Space::LX
                                    ? sanitizer.lx()[core] + at
                                    : sanitizer.memory().host(sanitizer.address_of(at));
      std::memcpy(&row, memory, sizeof(row));
      if (row < -step.rows || row >= step.rows) continue;  // the step itself refuses it
      const int64_t chosen = (row < 0 ? row + step.rows : row) * step.row_stride;
      Bits value_data;
      uint64_t unused = 0;
      if (step.scatters) {
        read_stick(kValue, core, value_at, value_data, unused);
        if (!is_inside(kResult, core, out_at + chosen, true)) continue;
        const Where& out = where(kResult, core);
        note_written(out, kResult, core, out.base + out_at + chosen);
        // Two points may name one row: which of them stays is open, and no fault.
        out.shadow->state((out.base + out_at + chosen) / kStickBytes) = {
            value_data, run_, static_cast<uint16_t>(core), 0};
      } else {
        read_stick(kValue, core, value_at + chosen, value_data, unused);
        write_stick(kResult, core, out_at, value_data, result_tag);
      }
    }
    if (step.scatters) run_scatter_tags(step, core);
  }
}

// Where a scatter writes is not known beforehand: all that it may have written is alike.
void ShadowRun::run_scatter_tags(const GatherStep& step, int core) {
  constexpr int kResult = 2;
  std::vector<int64_t> points(step.extents.begin() + core * step.dims,
                              step.extents.begin() + (core + 1) * step.dims);
  std::vector<int64_t> strides = step.out.strides;
  points.push_back(step.rows);
  strides.push_back(step.row_stride);
  const auto [low, high] = hull(points.data(), strides, static_cast<int>(points.size()));
  const Where& place = where(kResult, core);
  for (int64_t at = low; at < high; at += kStickBytes) {
    if (place.base + at < place.low || place.base + at + kStickBytes > place.high) continue;
    note_written(place, kResult, core, place.base + at);
    place.shadow->set_tag(flow_, (place.base + at) / kStickBytes, launch_.number_, kOpaqueTag);
  }
}

// ---- Moves over the ring ------------------------------------------------------------------------

void ShadowRun::run_ring(const RingStep& step) {
  const int64_t sticks = step.sticks();
  for (const RingStep::Transfer& transfer : step.transfers) {
    for (int64_t n = 0; n < sticks; n++) {
      const auto [from, to] = step.stick(n);
      Bits data;
      uint64_t tag = 0;
      read_stick(0, transfer.source, transfer.source_offset + from, data, tag);
      write_stick(1, transfer.target, transfer.target_offset + to, data, tag);
    }
  }
}

void ShadowRun::run_topk(const TopkStep& step) {
  constexpr int kInput = 0, kOutput = 1;
  for (int core = 0; core < cores_; core++) {
    Counter point(step.extents.data() + core * step.dims, step.dims);
    for (int64_t p = 0; p < point.count(); p++, point.next()) {
      const int64_t group = step.stick_dim < 0 ? 0 : point[step.stick_dim];
      Register all;
      for (int64_t r = 0; r < step.count; r++) {
        const int64_t at = point.dot(step.input.strides) + r * step.input.strides.back();
        const Register value = load(step.input, kInput, core, at,
                                    sticks_left(step.input, core, group, step.lanes), step.lanes);
        all.tag = mix(all.tag, value.tag);
        all.data = all.data & value.data;
        if (all.operand < 0) {
          all.operand = value.operand;
          all.offset = value.offset;
        }
      }
      const uint64_t tag = mix(all.tag, 2 * step.largest + step.indices);
      for (int64_t i = 0; i < step.k; i++) {
        all.tag = mix(tag, i);
        store(step.output, kOutput, core,
              point.dot(step.output.strides) + i * step.output.strides.back(),
              sticks_left(step.output, core, group, step.lanes), step.lanes, all, nullptr);
      }
    }
  }
}

// ---- A step -------------------------------------------------------------------------------------

void ShadowRun::run() {
  if (flow_ == Flow::PROGRAM) {
    run_ = launch_.sanitizer_.new_run("operation " + launch_.step_name(number_) + " of " +
                                      launch_.program_->kernel);
    for (int number : written_by(step_)) {
      for (int core = 0; core < cores_; core++) {
        const ProgramNames::Buffer* buffer = where(number, core).buffer;
        if (buffer != nullptr) launch_.begin_buffer(number_, *buffer);
      }
    }
  }
  if (const auto* tile = std::get_if<ShadowTile>(&step_.what)) return run_tile(*tile);
  if (const auto* matmul = std::get_if<ShadowMatmul>(&step_.what)) return run_matmul(*matmul);
  if (const auto* copy = std::get_if<ShadowCopy>(&step_.what)) return run_copy(*copy);
  if (const auto* gather = std::get_if<GatherStep>(&step_.what)) return run_gather(*gather);
  if (const auto* ring = std::get_if<RingStep>(&step_.what)) return run_ring(*ring);
  if (const auto* topk = std::get_if<TopkStep>(&step_.what)) return run_topk(*topk);
}

}  // namespace spyre::card
