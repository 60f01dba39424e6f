// In reading order: sticks, operands, instructions, tile programs. The other kinds of steps are in
// sanitizer/shadow_steps.cpp.
#include "sanitizer/shadow_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>

#include "sanitizer/shadow_lanes.h"

namespace spyre::card {

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

bool ShadowRun::report_outside(int number, int core, int64_t offset, bool writes) {
  const Where& place = where(number, core);
  const int64_t at = place.base + offset;
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
  note_found(number, place.base + offset, state);
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

// What is in a scratchpad from before the launch is not among what makes it known.
void ShadowRun::note_found(int number, int64_t at, const StickState& state) {
  if (state.run >= launch_.first_run_) return;
  const OperandAddress& address = *addresses_[number];
  if (address.space == Space::ARGUMENT) {
    launch_.recorder_.finds(address.argument, at);
  } else if (state.buffer == 0 || !(state == begun_stick(launch_.number_, state.buffer))) {
    launch_.recorder_.give_up();
  }
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
  if (per_stick == lanes && value.data.covers(Bits::range(0, lanes))) {  // the usual case
    write_stick(number, core, offset, Bits::full(), value.tag);
    return;
  }
  for (int i = 0; i < lanes / per_stick && i < sticks_left; i++, offset += operand.sub_stride) {
    const Bits own = shifted_right(value.data, i * per_stick) & Bits::range(0, per_stick);
    write_stick(number, core, offset, bytes_of_lanes(own, bytes), value.tag + i * kNextStick);
  }
}

// ---- Instructions -------------------------------------------------------------------------------

void ShadowRun::execute(const Code& code, std::span<const TileOperand> operands, int core,
                        const int64_t* offsets, int64_t group, int lanes, Register* registers,
                        const Register* results) {
  // Operands of a product's epilogue are numbered after x and y.
  // What rows of a product choose their y by comes after its operands.
  const auto* matmul = std::get_if<ShadowMatmul>(&step_.what);
  const int after = matmul != nullptr && matmul->choice ? 1 : 0;
  const int first = static_cast<int>(addresses_.size() - operands.size()) - after;
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
        for (int source : {in.a, in.b, in.c}) {
          if (count == in.inputs) break;
          const Register& input = registers[source];
          value.data = value.data & input.data;
          if (input.operand >= 0 && value.operand < 0) {
            value.operand = input.operand;
            value.offset = input.offset;
          }
          tags[count++] = input.tag;
        }
        if (in.commutes && tags[1] < tags[0]) std::swap(tags[0], tags[1]);
        value.tag = mix(tags[0], in.tag);
        if (count > 1) value.tag = mix(value.tag, tags[1]);
        if (count > 2) value.tag = mix(value.tag, tags[2]);
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
  // How offsets grow from point to point: [operand], and [member of the team][operand].
  std::vector<std::vector<int64_t>> kept_steps;
  std::vector<std::vector<std::vector<int64_t>>> reduced_steps(team.size());
  for (const TileOperand& operand : step.operands) {
    kept_steps.push_back(kept.steps(operand.strides));
    for (size_t member = 0; member < team.size(); member++) {
      reduced_steps[member].push_back(reduced_by_core[member].steps(operand.strides, step.kept));
    }
  }
  const auto advance = [&](Counter& point, std::vector<int64_t>& at,
                           const std::vector<std::vector<int64_t>>& steps) {
    const int moved = point.next();
    for (int i = 0; i < operands; i++) at[i] += moved < 0 ? steps[i].back() : steps[i][moved];
  };
  std::vector<Register> lanes, results(kRegisters);
  std::vector<Total> totals(kRegisters);
  for (int64_t k = 0; k < kept_points; k++, advance(kept, kept_offsets, kept_steps)) {
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
        offsets = kept_offsets;
        for (int64_t r = 0; r < points; r++, advance(reduced, offsets, reduced_steps[member])) {
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
