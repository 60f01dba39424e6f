#include "sanitizer/shadow_program.h"

#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "program/program.h"

namespace spyre::card {
namespace {

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

StepHead read_head(WordReader& reader) {
  StepHead head;
  head.kind = reader.next();
  reader.next();  // its length
  head.cores = static_cast<int>(reader.next());
  head.loops = static_cast<int>(reader.next());
  const int64_t bytes = reader.next();
  for (int64_t word : reader.list((bytes + 7) / 8)) {
    for (int i = 0; i < 8; i++) {
      head.name += static_cast<char>(static_cast<uint64_t>(word) >> 8 * i & 0xff);
    }
  }
  head.name.resize(bytes);
  head.device_us = std::bit_cast<double>(reader.next());
  return head;
}

std::vector<ShadowInstruction> read_code(WordReader& reader) {
  std::vector<ShadowInstruction> code;
  for (int64_t left = reader.next(); left > 0; left--) {
    const std::vector<int64_t> words = reader.list(8);
    const int opcode = static_cast<int>(words[0]);
    code.push_back({opcode, static_cast<int>(words[1]), static_cast<int>(words[2]),
                    static_cast<int>(words[3]), static_cast<int>(words[4]), inputs_of(opcode),
                    is_commutative(opcode), mix(opcode, mix(words[5], words[6]))});
  }
  return code;
}

std::vector<ShadowReduction> read_reductions(WordReader& reader, int64_t count) {
  std::vector<ShadowReduction> reductions;
  for (int64_t i = 0; i < count; i++) {
    const std::vector<int64_t> words = reader.list(3);
    reductions.push_back(
        {reduce_op(words[0]), static_cast<int>(words[1]), static_cast<int>(words[2])});
  }
  return reductions;
}

// Cores of one group, in order of their numbers; without groups each for itself.
std::vector<std::vector<int>> read_teams(WordReader& reader, int cores, bool has_groups) {
  std::vector<std::vector<int>> teams;
  std::map<int64_t, size_t> known;
  for (int core = 0; core < cores; core++) {
    const int64_t group = has_groups ? reader.next() : core;
    const auto [entry, is_new] = known.try_emplace(group, teams.size());
    if (is_new) teams.emplace_back();
    teams[entry->second].push_back(core);
  }
  return teams;
}

ShadowTile read_tile(WordReader& reader, const StepHead& head) {
  ShadowTile tile;
  tile.lanes = static_cast<int>(reader.next());
  tile.kept = static_cast<int>(reader.next());
  tile.reduced = static_cast<int>(reader.next());
  tile.stick_dim = static_cast<int>(reader.next());
  tile.extents = reader.list(static_cast<size_t>(head.cores) * tile.dims());
  for (int core = 0; core < head.cores; core++) {
    const std::vector<int64_t> words = reader.list(2);
    tile.tails.push_back(Bits{static_cast<uint64_t>(words[0]), static_cast<uint64_t>(words[1])} &
                         Bits::range(0, tile.lanes));
  }
  for (int64_t left = reader.next(); left > 0; left--) {
    tile.operands.push_back(parse_tile_operand(reader, head, tile.dims(), tile.lanes));
  }
  ShadowPhase& first = tile.phases.emplace_back();
  first.body = read_code(reader);
  const int64_t reductions = reader.next();
  if (reductions == 0) {
    tile.teams = read_teams(reader, head.cores, false);
    return tile;
  }
  tile.reduces_lanes = reader.next() == 1;
  tile.teams = read_teams(reader, head.cores, reader.next() == 1);
  first.reductions = read_reductions(reader, reductions);
  first.epilogue = read_code(reader);
  for (int64_t left = reader.next(); left > 0; left--) {
    ShadowPhase& phase = tile.phases.emplace_back();
    phase.body = read_code(reader);
    phase.reductions = read_reductions(reader, reader.next());
    if (!phase.reductions.empty()) phase.epilogue = read_code(reader);
  }
  return tile;
}

ShadowMatmul read_matmul(WordReader& reader, const StepHead& head) {
  ShadowMatmul step;
  step.x.format = reader.format();
  step.y.format = reader.format();
  TileOperand out;
  out.format = reader.format();
  reader.next();  // whether it is large: how terms are added, not which
  step.batch = static_cast<int>(reader.next());
  step.extents = reader.list(static_cast<size_t>(head.cores) * (step.batch + 3));
  for (ShadowMatmul::Side* side : {&step.x, &step.y}) {
    side->strides = reader.list(step.batch + 2);
    side->address = parse_address(reader, head);
  }
  const auto read_result = [&](TileOperand& operand) {
    operand.strides = reader.list(step.batch + 2);
    operand.limits.assign(head.cores, -1);
    operand.address = parse_address(reader, head);
    step.results.push_back(std::move(operand));
  };
  read_result(out);
  step.teams = read_teams(reader, head.cores, reader.next() == 1);
  for (int64_t left = reader.next(); left > 0; left--) {
    TileOperand operand;
    operand.format = reader.format();
    operand.form = static_cast<OperandForm>(reader.next());
    read_result(operand);
  }
  step.epilogue = read_code(reader);
  // Without instructions the sums are stored as they are.
  if (step.epilogue.empty()) step.epilogue.push_back({STORE, 0, 0});
  return step;
}

ShadowMatmul read_chosen_matmul(WordReader& reader, const StepHead& head) {
  ShadowMatmul step = read_matmul(reader, head);
  step.choice = read_choice(reader, head, step.batch);
  return step;
}

ShadowCopy::Side read_side(WordReader& reader, const StepHead& head) {
  ShadowCopy::Side side;
  Placement placement;
  placement.layout.format = reader.format();
  placement.layout.arrangement = static_cast<ElementArrangement>(reader.next());
  const int64_t axes = reader.next();
  placement.layout.device_size = reader.list(axes);
  placement.layout.stride_map = reader.list(axes);
  const int64_t shape = reader.next();
  placement.sizes = reader.list(shape);
  placement.strides = reader.list(shape);
  const int64_t rank = reader.next();
  const Dims strides = reader.list(rank);
  for (int core = 0; core < head.cores; core++) {
    const int64_t offset = reader.next();
    side.views.push_back({reader.list(rank), strides, offset});
  }
  side.address = parse_address(reader, head);
  side.map = make_address_map(placement);
  side.elem_bytes = bytes_per_elem(placement.layout.format);
  return side;
}

ShadowCopy read_copy(WordReader& reader, const StepHead& head) {
  ShadowCopy copy;
  copy.source = read_side(reader, head);
  copy.destination = read_side(reader, head);
  return copy;
}

}  // namespace

std::shared_ptr<const ShadowProgram> parse_shadow(std::span<const std::byte> program) {
  uint32_t count = 0;
  std::memcpy(&count, program.data() + 12, sizeof(count));
  std::vector<int64_t> words(count);
  std::memcpy(words.data(), program.data() + kProgramHeaderBytes, 8 * words.size());
  auto result = std::make_shared<ShadowProgram>();
  std::vector<size_t> open;
  for (size_t at = 0; at < words.size(); at += words[at + 1]) {
    WordReader reader(std::span<const int64_t>(words).subspan(at, words[at + 1]), "shadow");
    ShadowStep step;
    step.head = read_head(reader);
    switch (step.head.kind) {
      case LOOP_END:
        std::get<ShadowLoop>(result->steps[open.back()].what).end = result->steps.size();
        open.pop_back();
        continue;
      case WORK:  // for the clock
        continue;
      case LOOP_BEGIN:
        open.push_back(result->steps.size());
        step.what = ShadowLoop{reader.next(), 0};
        break;
      case TILE:
        step.what = read_tile(reader, step.head);
        break;
      case MATMUL:
        step.what = read_matmul(reader, step.head);
        break;
      case CHOSEN_MATMUL:
        step.what = read_chosen_matmul(reader, step.head);
        break;
      case COPY_STEP:
        step.what = read_copy(reader, step.head);
        break;
      case GATHER:
        step.what = parse_gather(reader, step.head);
        break;
      case SCATTER:
        step.what = parse_scatter(reader, step.head);
        break;
      case RING:
        step.what = parse_ring(reader, step.head);
        break;
      default:
        step.what = parse_topk(reader, step.head);
    }
    result->is_decided &= !std::holds_alternative<GatherStep>(step.what);
    result->is_decided &= step.head.kind != CHOSEN_MATMUL;
    for (const OperandAddress* address : addresses_of(step)) {
      result->is_decided &= address->space != Space::DEVICE;
    }
    result->steps.push_back(std::move(step));
  }
  return result;
}

std::vector<const OperandAddress*> addresses_of(const ShadowStep& step) {
  std::vector<const OperandAddress*> found;
  if (const auto* tile = std::get_if<ShadowTile>(&step.what)) {
    for (const TileOperand& operand : tile->operands) found.push_back(&operand.address);
  } else if (const auto* matmul = std::get_if<ShadowMatmul>(&step.what)) {
    found = {&matmul->x.address, &matmul->y.address};
    for (const TileOperand& operand : matmul->results) found.push_back(&operand.address);
    if (matmul->choice) found.push_back(&matmul->choice->address);
  } else if (const auto* copy = std::get_if<ShadowCopy>(&step.what)) {
    found = {&copy->source.address, &copy->destination.address};
  } else if (const auto* gather = std::get_if<GatherStep>(&step.what)) {
    found = {&gather->value.address, &gather->index.address, &gather->out.address};
  } else if (const auto* topk = std::get_if<TopkStep>(&step.what)) {
    found = {&topk->input.address, &topk->output.address};
  } else if (const auto* ring = std::get_if<RingStep>(&step.what)) {
    found = {&ring->source, &ring->target};
  }
  return found;
}

std::vector<int> written_by(const ShadowStep& step) {
  std::vector<int> found;
  const auto add_stores = [&](const std::vector<ShadowInstruction>& code, int first) {
    for (const ShadowInstruction& in : code) {
      if (in.opcode == STORE) found.push_back(first + in.destination);
    }
  };
  if (const auto* tile = std::get_if<ShadowTile>(&step.what)) {
    for (const ShadowPhase& phase : tile->phases) {
      add_stores(phase.body, 0);
      add_stores(phase.epilogue, 0);
    }
  } else if (const auto* matmul = std::get_if<ShadowMatmul>(&step.what)) {
    add_stores(matmul->epilogue, 2);
  } else if (std::holds_alternative<GatherStep>(step.what)) {
    found = {2};
  } else {
    found = {1};
  }
  return found;
}

}  // namespace spyre::card
