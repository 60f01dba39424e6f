#include "tile/machine.h"

#include <algorithm>

#include "tile/bound_propagation.h"

namespace spyre::card {

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

namespace {

// ---- Loads and stores ----------------------------------------------------------------

// Whole lanes of a format from contiguous memory, and what is known of them.
Bounds load_lanes(const Machine& machine, DataFormat format, const std::byte* from, uint32_t* out,
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
      rows(machine.convert.from_card, Conversion::F32_HALF);
      break;
    case DataFormat::BFLOAT16:
      rows(machine.convert.to_card, Conversion::BF16_F32);
      break;
    case DataFormat::SEN143_FP8:
    case DataFormat::SENINT8:
      for (int64_t i = 0; i < lanes; i++) {
        out[i] = load_element(format, machine.context.numerics, from + i);
      }
      break;
    default:
      std::memcpy(out, from, lanes * 4);
  }
  return {};
}

void store_lanes(const Machine& machine, DataFormat format, const uint32_t* in, std::byte* to,
                 int64_t lanes, const Bounds& bounds) {
  const auto* from = reinterpret_cast<const std::byte*>(in);
  const auto rows = [&](const ConvertRows* table, Conversion conversion) {
    table[static_cast<int>(conversion)](to, 0, from, 0, 1, lanes, Stores::CACHED);
  };
  switch (format) {
    case DataFormat::SEN169_FP16:
      if (machine.context.numerics == Numerics::DLFLOAT16) {
        const auto encode = bounds.keeps_in_range() ? machine.table.encode_in_range
                                                    : machine.table.encode_dlfloat16;
        return encode(to, in, lanes);
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

int64_t left_at(const Place& place, int64_t group) {
  return place.left == kAllSticks ? kAllSticks : place.left - group * place.left_step;
}

// The lanes of a part, and what is known of them.
Bounds load_part(const Machine& machine, int number, const Place& place, uint32_t* out) {
  const TileOperand& operand = machine.step.operands[number];
  const GroupShape& shape = machine.step.shapes[number];
  const int lanes = machine.step.lanes;
  if (place.left != kAllSticks) {
    for (int64_t i = 0; i < place.count; i++) {
      load_group(operand, place.at + i * place.stride, left_at(place, i), lanes,
                 machine.context.numerics, out + i * lanes);
    }
    return {};
  }
  Bounds bounds = Bounds::none();
  if (operand.form != OperandForm::VECTOR) {
    const int64_t groups = place.stride == 0 ? place.count : 1;  // with the same value
    for (int64_t i = 0; i < place.count; i += groups) {
      const uint32_t value =
          load_splat(operand, place.at + i * place.stride, machine.context.numerics);
      machine.table.registers[CONSTANT_BITS].plain(
          {out + i * lanes, nullptr, nullptr, nullptr, value, 0, groups * lanes});
      bounds.include(Bounds::of(value));
    }
    return bounds;
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
      bounds.include(load_lanes(machine, operand.format, at, out, lanes));
      continue;
    }
    for (int s = 0; s < shape.sticks; s++) {
      bounds.include(load_lanes(machine, operand.format, at + s * operand.sub_stride,
                                out + s * shape.per_stick, shape.per_stick));
    }
  }
  return bounds;
}

void store_part(const Machine& machine, int number, const Place& place, const uint32_t* in,
                const uint32_t* second, const Bounds& bounds) {
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
    return store_lanes(machine, operand.format, in, place.at, place.count * lanes, bounds);
  }
  for (int64_t i = 0; i < place.count; i++, in += lanes) {
    std::byte* at = place.at + i * place.stride;
    if (shape.whole) {
      store_lanes(machine, operand.format, in, at, lanes, bounds);
      continue;
    }
    for (int s = 0; s < shape.sticks; s++) {
      store_lanes(machine, operand.format, in + s * shape.per_stick, at + s * operand.sub_stride,
                  shape.per_stick, bounds);
    }
  }
}

// ---- Instructions --------------------------------------------------------------------

// What is known of the result.
Bounds round_to(const Machine& machine, DataFormat format, uint32_t* out, const uint32_t* in,
                int64_t lanes) {
  if (format == DataFormat::SEN169_FP16 && machine.context.numerics == Numerics::DLFLOAT16) {
    return machine.table.round_dlfloat16(out, in, lanes);
  }
  alignas(64) std::byte stored[kTileLanes * 4];
  store_lanes(machine, format, in, stored, lanes, {});
  return load_lanes(machine, format, stored, out, lanes);
}

// Bounds of the result of an instruction, given those of its inputs.
[[gnu::always_inline]] inline Bounds exact_bounds(const TileInstruction& in, const Bounds& a,
                                                  const Bounds& b, const Bounds& c) {
  const Bounds first = bounds_of(in.opcode, a, b);
  return in.is_pair() ? bounds_of(in.then_opcode, first, c) : first;
}

// `exact` is what is known of the result before it is rounded; given back is what is known then.
[[gnu::always_inline]] inline Bounds run_kernel(const Machine& machine, const TileInstruction& in,
                                                const Kernels& kernels,
                                                const TileArguments& arguments,
                                                const Bounds& exact) {
  if (!in.then_round) {
    kernels.plain(arguments);
    return exact;
  }
  if (machine.context.numerics == Numerics::DLFLOAT16 && kernels.rounded != nullptr) {
    if (!exact.keeps_in_range()) return kernels.rounded(arguments);
    (exact.coarse ? kernels.plain : kernels.in_range)(arguments);
    return exact.coarse ? exact : exact.rounded();
  }
  kernels.plain(arguments);
  return round_to(machine, DataFormat::SEN169_FP16, arguments.out, arguments.out, arguments.lanes);
}

const Kernels& group_kernels(const TileTable& table, const TileInstruction& in) {
  return in.is_pair() ? table.pair_by_group[pair_of(in.opcode, in.then_opcode)]
                      : table.by_group[in.opcode];
}
const Kernels& repeated_kernels(const TileTable& table, const TileInstruction& in) {
  return in.is_pair() ? table.pair_repeated[pair_of(in.opcode, in.then_opcode)]
                      : table.repeated[in.opcode];
}

// With operands as second inputs, on one part of a tile; out and a are at its begin. Where the
// groups of an operand are one and the same, one is loaded.
Bounds compute_part(const TileView& tile, const Part& part, const TileInstruction& in,
                    Workspace& space, TileArguments arguments, const Bounds& a) {
  const Machine& machine = tile.machine;
  Place b = place_of(tile, part, in.b);
  const bool repeats = b.stride == 0 && b.left_step == 0;
  arguments.b = space.second;
  arguments.group = machine.step.lanes;
  Bounds c_bounds;
  if (in.is_pair()) {
    Place c = place_of(tile, part, in.c);
    if (!repeats || c.stride != 0 || c.left_step != 0) {
      TileInstruction first = in, second = in;
      first.then_opcode = second.then_opcode = TileInstruction::kNoOpcode;
      first.then_round = false;
      second.opcode = in.then_opcode;
      second.b = in.c;
      const Bounds between = compute_part(tile, part, first, space, arguments, a);
      arguments.a = arguments.out;
      return compute_part(tile, part, second, space, arguments, between);
    }
    c.count = 1;
    c_bounds = load_part(machine, in.c, c, space.third);
    arguments.c = space.third;
  }
  if (repeats) b.count = 1;
  const Bounds b_bounds = load_part(machine, in.b, b, space.second);
  return run_kernel(
      machine, in,
      repeats ? repeated_kernels(machine.table, in) : machine.table.registers[in.opcode], arguments,
      exact_bounds(in, a, b_bounds, c_bounds));
}

[[gnu::always_inline]] inline Bounds compute(const TileView& tile, const TileInstruction& in,
                                             Workspace& space, int64_t lanes) {
  const Machine& machine = tile.machine;
  const auto reg = [&](int number) { return number < 0 ? nullptr : space.registers[number]; };
  const auto known = [&](int number) { return number < 0 ? Bounds{} : space.bounds[number]; };
  TileArguments arguments{
      space.registers[in.destination], reg(in.a), nullptr, nullptr, in.imm0, in.imm1, lanes};
  switch (in.b_is) {
    case SecondInput::REGISTER: {
      arguments.b = reg(in.b);
      arguments.c = reg(in.c);
      const bool immediate = in.opcode == ADD_CONSTANT || in.opcode == MUL_CONSTANT;
      const Bounds b = immediate ? Bounds::of(in.imm0) : known(in.b);
      return run_kernel(machine, in, machine.table.registers[in.opcode], arguments,
                        bounds_of(in.opcode, known(in.a), b));
    }
    case SecondInput::RESULT:
      arguments.b = space.results[in.b];
      if (in.is_pair()) arguments.c = space.results[in.c];
      arguments.group = machine.step.lanes;
      arguments.period = tile.kept_lanes;
      arguments.b_step = machine.step.result_lanes();
      return run_kernel(machine, in, group_kernels(machine.table, in), arguments,
                        exact_bounds(in, known(in.a), space.result_bounds[in.b],
                                     in.is_pair() ? space.result_bounds[in.c] : Bounds{}));
    case SecondInput::STILL_OPERAND: {
      const uint32_t value = load_splat(machine.step.operands[in.b], machine.base(tile.core, in.b),
                                        machine.context.numerics);
      arguments.b = &value;
      arguments.group = arguments.period = lanes;
      return run_kernel(machine, in, group_kernels(machine.table, in), arguments,
                        bounds_of(in.opcode, known(in.a), Bounds::of(value)));
    }
    case SecondInput::OPERAND:
      break;
  }
  const Bounds a = known(in.a);  // of which the result may take the place
  Bounds all = Bounds::none();
  for (const Part& part : tile.parts) {
    arguments.lanes = part.run->count * machine.step.lanes;
    all.include(compute_part(tile, part, in, space, arguments, a));
    arguments.out += arguments.lanes;
    arguments.a += arguments.lanes;
  }
  return all;
}

// Results of the kept points at all their points. Where lanes are reduced the first one of a group
// is its result.
void spread(const TileView& tile, const uint32_t* results, uint32_t* out) {
  const int lanes = tile.machine.step.lanes;
  for (int64_t start = 0; start < tile.lanes; start += tile.kept_lanes) {
    if (!tile.machine.step.reduce_lanes) {
      std::memcpy(out + start, results, tile.kept_lanes * sizeof(uint32_t));
      continue;
    }
    const uint32_t* result = results;
    for (int64_t at = 0; at < tile.kept_lanes; at += lanes) {
      tile.machine.table.registers[CONSTANT_BITS].plain(
          {out + start + at, nullptr, nullptr, nullptr, *result, 0, lanes});
      result += tile.machine.step.result_lanes();
    }
  }
}

}  // namespace

void run_instructions(const std::vector<TileInstruction>& instructions, const TileView& tile,
                      Workspace& space) {
  const Machine& machine = tile.machine;
  for (const TileInstruction& in : instructions) {
    switch (in.opcode) {
      case LOAD: {
        uint32_t* out = space.registers[in.destination];
        Bounds all = Bounds::none();
        for (const Part& part : tile.parts) {
          all.include(load_part(machine, in.a, place_of(tile, part, in.a), out));
          out += part.run->count * machine.step.lanes;
        }
        space.bounds[in.destination] = all;
        break;
      }
      case STORE: {
        int64_t at = 0;
        for (const Part& part : tile.parts) {
          store_part(machine, in.destination, place_of(tile, part, in.destination),
                     space.registers[in.a] + at, in.b < 0 ? nullptr : space.registers[in.b] + at,
                     space.bounds[in.a]);
          at += part.run->count * machine.step.lanes;
        }
        break;
      }
      case ROUND:
        space.bounds[in.destination] = round_to(machine, in.format, space.registers[in.destination],
                                                space.registers[in.a], tile.lanes);
        break;
      case SPREAD:
        spread(tile, space.results[in.a], space.registers[in.destination]);
        space.bounds[in.destination] = space.result_bounds[in.a];
        break;
      default:
        space.bounds[in.destination] = compute(tile, in, space, tile.lanes);
    }
  }
}

void run_instructions(const std::shared_ptr<const TileCode>& code,
                      const std::vector<TileInstruction>& instructions, const TileView& tile,
                      Workspace& space) {
  if (code == nullptr || !tile.machine.translated || !code->run(tile, space, {})) {
    run_instructions(instructions, tile, space);
  }
}

void run_compact(const std::vector<TileInstruction>& instructions, const TileView& tile,
                 Workspace& space) {
  const Machine& machine = tile.machine;
  const int group = machine.step.lanes;
  const Numerics numerics = machine.context.numerics;
  // Kernels work on whole blocks: lanes after the last row are computed and never read.
  constexpr int64_t kBlock = 32;
  const int64_t used = tile.lanes / group * kCompactLanes;
  const int64_t lanes = (used + kBlock - 1) / kBlock * kBlock;
  // Calls visit(first lane of its results, place, number of its group there) for each kept point.
  const auto for_each_row = [&](int operand, auto&& visit) {
    int64_t lane = 0;
    for (const Part& part : tile.parts) {
      const Place place = place_of(tile, part, operand);
      for (int64_t i = 0; i < place.count; i++, lane += kCompactLanes) visit(lane, place, i);
    }
  };
  for (const TileInstruction& in : instructions) {
    if (in.opcode == LOAD) {
      const TileOperand& operand = machine.step.operands[in.a];
      const bool is_vector = operand.form == OperandForm::VECTOR;
      uint32_t* out = space.registers[in.destination];
      for_each_row(in.a, [&](int64_t lane, const Place& place, int64_t i) {
        const std::byte* at = place.at + i * place.stride;
        uint32_t value = 0;
        if (left_at(place, i) > 0) {
          value = is_vector ? load_element(operand.format, numerics, at)
                            : load_splat(operand, at, numerics);
        }
        std::fill_n(out + lane, kCompactLanes, value);
      });
      space.bounds[in.destination] = {};
    } else if (in.opcode == STORE) {
      const TileOperand& operand = machine.step.operands[in.destination];
      for_each_row(in.destination, [&](int64_t lane, const Place& place, int64_t i) {
        std::byte* at = place.at + i * place.stride;
        const uint32_t first = space.registers[in.a][lane];
        if (in.b < 0) {
          store_splat(operand, at, left_at(place, i), group, numerics, first);
        } else {  // an EXX2 stick
          store_group(operand, at, left_at(place, i), group, numerics, &first,
                      &space.registers[in.b][lane]);
        }
      });
    } else if (in.opcode == ROUND) {
      space.bounds[in.destination] = round_to(machine, in.format, space.registers[in.destination],
                                              space.registers[in.a], lanes);
    } else {
      space.bounds[in.destination] = compute(tile, in, space, lanes);
    }
  }
}

}  // namespace spyre::card
