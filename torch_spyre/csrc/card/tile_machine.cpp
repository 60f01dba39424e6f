#include "tile_machine.h"

#include <algorithm>

namespace spyre::card {
namespace {

// ---- Loads and stores ----------------------------------------------------------------

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

// ---- Instructions --------------------------------------------------------------------

void round_to(const Machine& machine, DataFormat format, uint32_t* out, const uint32_t* in,
              int64_t lanes) {
  if (format == DataFormat::SEN169_FP16 && machine.context.numerics == Numerics::DLFLOAT16) {
    return machine.table.round_dlfloat16(out, in, lanes);
  }
  alignas(64) std::byte stored[kTileLanes * 4];
  store_lanes(machine, format, in, stored, lanes);
  load_lanes(machine, format, stored, out, lanes);
}

// The kernel of an instruction; one that rounds, if the instruction does and there is one.
struct Kernels {
  const TileKernel* plain;
  const TileKernel* rounded;
};
void run_kernel(const Machine& machine, const TileInstruction& in, const Kernels& kernels,
                const TileArguments& arguments) {
  if (in.then_round && machine.context.numerics == Numerics::DLFLOAT16 &&
      kernels.rounded[in.opcode] != nullptr) {
    return kernels.rounded[in.opcode](arguments);
  }
  kernels.plain[in.opcode](arguments);
  if (in.then_round) {
    round_to(machine, DataFormat::SEN169_FP16, arguments.out, arguments.out, arguments.lanes);
  }
}

// With an operand as second input. Where its groups are one and the same, one is loaded.
void compute_with_operand(const TileView& tile, const TileInstruction& in, Workspace& space,
                          TileArguments arguments) {
  const Machine& machine = tile.machine;
  const TileTable& table = machine.table;
  arguments.b = space.second;
  arguments.group = machine.step.lanes;
  for (const Part& part : tile.parts) {
    Place place = place_of(tile, part, in.b);
    arguments.lanes = place.count * machine.step.lanes;
    const bool repeats = place.stride == 0 && place.left_step == 0;
    if (repeats) place.count = 1;
    load_part(machine, in.b, place, space.second);
    run_kernel(machine, in,
               repeats ? Kernels{table.repeated, table.rounded_repeated}
                       : Kernels{table.plain, table.rounded},
               arguments);
    arguments.out += arguments.lanes;
    arguments.a += arguments.lanes;
  }
}

void compute(const TileView& tile, const TileInstruction& in, Workspace& space, int64_t lanes) {
  const Machine& machine = tile.machine;
  const TileTable& table = machine.table;
  const auto reg = [&](int number) { return number < 0 ? nullptr : space.registers[number]; };
  TileArguments arguments{
      space.registers[in.destination], reg(in.a), nullptr, reg(in.c), in.imm0, in.imm1, lanes};
  switch (in.b_is) {
    case SecondInput::REGISTER:
      arguments.b = reg(in.b);
      return run_kernel(machine, in, {table.plain, table.rounded}, arguments);
    case SecondInput::RESULT:
      arguments.b = space.results[in.b];
      arguments.group = machine.step.lanes;
      arguments.period = tile.kept_lanes;
      arguments.b_step = machine.step.result_lanes();
      return run_kernel(machine, in, {table.by_group, table.rounded_by_group}, arguments);
    case SecondInput::STILL_OPERAND: {
      const uint32_t value = load_splat(machine.step.operands[in.b], machine.base(tile.core, in.b),
                                        machine.context.numerics);
      arguments.b = &value;
      arguments.group = arguments.period = lanes;
      return run_kernel(machine, in, {table.by_group, table.rounded_by_group}, arguments);
    }
    case SecondInput::OPERAND:
      return compute_with_operand(tile, in, space, arguments);
  }
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
      tile.machine.table.plain[CONSTANT_BITS](
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
      case SPREAD:
        spread(tile, space.results[in.a], space.registers[in.destination]);
        break;
      default:
        compute(tile, in, space, tile.lanes);
    }
  }
}

void run_compact(const std::vector<TileInstruction>& instructions, const TileView& tile,
                 Workspace& space) {
  const Machine& machine = tile.machine;
  const int group = machine.step.lanes;
  const Numerics numerics = machine.context.numerics;
  // Kernels work on whole blocks: lanes behind the last row are computed and never read.
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
    } else if (in.opcode == STORE) {
      const TileOperand& operand = machine.step.operands[in.destination];
      for_each_row(in.destination, [&](int64_t lane, const Place& place, int64_t i) {
        uint32_t first[kMaxLanes], second[kMaxLanes];
        std::fill_n(first, group, space.registers[in.a][lane]);
        if (in.b >= 0) std::fill_n(second, group, space.registers[in.b][lane]);
        store_group(operand, place.at + i * place.stride, left_at(place, i), group, numerics, first,
                    in.b < 0 ? nullptr : second);
      });
    } else if (in.opcode == ROUND) {
      round_to(machine, in.format, space.registers[in.destination], space.registers[in.a], lanes);
    } else {
      compute(tile, in, space, lanes);
    }
  }
}

}  // namespace spyre::card
