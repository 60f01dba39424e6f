// Running what jit/tile_to_vector_ir.cpp has made: which form a tile can have, and where its
// operands are.
#include "jit/specialisations.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "jit/record.h"
#include "tile/bound_propagation.h"

namespace spyre::card {
namespace {

// What a scan of codes has seen, by lane: the largest magnitudes, and the smallest less one, so
// that zero counts as large.
struct alignas(64) CodeScan {
  uint16_t most[32], least[32];
  CodeScan() {
    std::fill_n(most, 32, uint16_t{0});
    std::fill_n(least, 32, uint16_t{0xffff});
  }
  uint16_t largest() const;
  uint16_t smallest() const;  // less one
  // Infinity and NaN give the widest bounds.
  Bounds bounds() const {
    const uint16_t largest = this->largest(), smallest = this->smallest();
    if (largest >= Dlfloat16::kInfinity) {
      return {0.0f, std::numeric_limits<float>::infinity(), true, true};
    }
    if (largest == 0) return Bounds::of(0);
    return {decode_dlfloat16(static_cast<uint16_t>(smallest + 1)), decode_dlfloat16(largest), true,
            true};
  }
};

// `lanes` codes, a multiple of 32.
#if defined(__x86_64__)
[[gnu::target("avx512f,avx512bw")]] void scan_codes(CodeScan& scan, const std::byte* from,
                                                    int64_t lanes) {
  const __m512i kMagnitude = _mm512_set1_epi16(Dlfloat16::kMagnitude);
  const __m512i kOne = _mm512_set1_epi16(1);
  __m512i most = _mm512_load_si512(scan.most), least = _mm512_load_si512(scan.least);
  for (int64_t i = 0; i < lanes; i += 32) {
    const __m512i magnitude = _mm512_and_si512(_mm512_loadu_si512(from + 2 * i), kMagnitude);
    most = _mm512_max_epi16(most, magnitude);
    least = _mm512_min_epu16(least, _mm512_sub_epi16(magnitude, kOne));
  }
  _mm512_store_si512(scan.most, most);
  _mm512_store_si512(scan.least, least);
}
[[gnu::target("avx2")]] uint16_t least_of(const uint16_t* words) {
  const auto* four = reinterpret_cast<const __m256i*>(words);
  const __m256i two = _mm256_min_epu16(_mm256_load_si256(four), _mm256_load_si256(four + 1));
  const __m128i one = _mm_min_epu16(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
  return static_cast<uint16_t>(_mm_extract_epi16(_mm_minpos_epu16(one), 0));
}
[[gnu::target("avx512f,avx512bw")]] uint16_t CodeScan::largest() const {
  alignas(64) uint16_t turned[32];
  _mm512_store_si512(turned, _mm512_xor_si512(_mm512_load_si512(most), _mm512_set1_epi16(-1)));
  return static_cast<uint16_t>(~least_of(turned));
}
uint16_t CodeScan::smallest() const { return least_of(least); }
#else
void scan_codes(CodeScan&, const std::byte*, int64_t) {}
uint16_t CodeScan::largest() const { return *std::max_element(most, most + 32); }
uint16_t CodeScan::smallest() const { return *std::min_element(least, least + 32); }
#endif

const std::byte* first_of(const TileView& tile, const Part& part, int operand) {
  const std::byte* at = tile.machine.base(tile.core, operand) + part.run->offsets[operand];
  return part.reduced == nullptr ? at : at + part.reduced->offsets[operand];
}

}  // namespace

// Bounds of what a tile reads and computes. Not initialized, since there is one for every tile:
// what is read has been written before.
struct SpecialisedCode::Knowledge {
  union {
    Bounds operands[kMaxTileOperands];
  };
  union {
    Bounds registers[kTileRegisters];
  };
  Knowledge() {}
};

bool SpecialisedCode::has_assumptions(const Workspace& space) const {
  return quick_.guarded != nullptr && std::all_of(guards_.begin(), guards_.end(), [&](int operand) {
           return (space.operands_assumed >> operand & 1) != 0;
         });
}

bool SpecialisedCode::know_operands(const TileView& tile, Workspace& space, Knowledge& knowledge,
                                    bool assume) const {
  const TileStep& step = tile.machine.step;
  for (const Stream& stream : streams_) {
    if (stream.source != Source::OPERAND && stream.source != Source::SPLAT_OPERAND) continue;
    const TileOperand& operand = step.operands[stream.number];
    Bounds& bounds = knowledge.operands[stream.number] = Bounds::none();
    const uint32_t bit = 1u << stream.number;
    const bool fixed = tile.whole_block && operand.limits[tile.core] < 0 &&
                       std::all_of(
                           tile.walk.kept.begin(), tile.walk.kept.end(),
                           [&](const TileDim& dim) { return dim.strides[stream.number] == 0; });
    if (tile.whole_block && (space.operands_known & bit) != 0) {
      bounds = space.operand_bounds[stream.number];
      continue;
    }
    if (fixed && (space.fixed_known & bit) != 0) {
      bounds = space.fixed_bounds[stream.number];
      continue;
    }
    const bool assumed =
        assume && std::find(guards_.begin(), guards_.end(), stream.number) != guards_.end();
    if (assumed) bounds = space.operand_assumptions[stream.number];
    CodeScan scan;
    const bool scans = loaded_[stream.number] && !assumed && stream.source == Source::OPERAND &&
                       is_code_format(operand.format);
    for (const Part& part : tile.parts) {
      if (!scans && stream.source == Source::OPERAND && operand.limits[tile.core] < 0) break;
      const Place place = place_of(tile, part, stream.number);
      if (place.left != kAllSticks) return false;
      const int64_t groups = place.stride == 0 ? 1 : place.count;
      if (stream.source == Source::SPLAT_OPERAND) {
        for (int64_t i = 0; i < groups; i++) {
          bounds.include(Bounds::of(
              load_splat(operand, place.at + i * place.stride, tile.machine.context.numerics)));
        }
      } else if (scans && place.stride == kStickBytes) {
        scan_codes(scan, place.at, groups * step.lanes);
      } else if (scans) {
        for (int64_t i = 0; i < groups; i++) {
          scan_codes(scan, place.at + i * place.stride, step.lanes);
        }
      }
    }
    if (scans) bounds = scan.bounds();
    if (!loaded_[stream.number] || assumed) continue;
    if (stream.source == Source::OPERAND && !is_code_format(operand.format)) bounds = {};
    if (fixed) {
      space.fixed_bounds[stream.number] = bounds;
      space.fixed_known |= bit;
    }
    if (tile.whole_block) {
      space.operand_bounds[stream.number] = bounds;
      space.operands_known |= bit;
    }
  }
  return true;
}

// Whether everything that is decoded, rounded or encoded keeps in the range of DLFloat16.
SpecialisedCode::Range SpecialisedCode::range_of(const Workspace& space,
                                                 Knowledge& knowledge) const {
  Bounds* registers = knowledge.registers;
  Range range = Range::ORDINARY;
  for (const Stream& stream : streams_) {
    if (stream.source == Source::REGISTER) registers[stream.number] = space.bounds[stream.number];
  }
  const auto second = [&](int number, SecondInput kind) {
    switch (kind) {
      case SecondInput::REGISTER:
        return number < 0 ? Bounds{} : registers[number];
      case SecondInput::RESULT:
        return space.result_bounds[number];
      default:
        return knowledge.operands[number];
    }
  };
  const auto of = [&](int opcode, const Bounds& a, const Bounds& b, int c) -> Bounds {
    if (is_comparison(opcode)) return {1.0f, 1.0f, true, true};
    if (opcode == WHERE) {
      Bounds either = b;
      either.include(registers[c]);
      return either;
    }
    return bounds_of(opcode, a, b);
  };
  for (const TileInstruction& in : instructions_) {
    Bounds exact;
    bool then_round = in.then_round;
    const float nearness = nearness_of(in.opcode);
    if (nearness > 0 && !(registers[in.a].most <= nearness)) range = Range::NOT_LARGE;
    if (divides_[&in - instructions_.data()] &&
        !(registers[in.a].coarse && space.result_bounds[in.b].coarse)) {
      range = Range::NOT_LARGE;
    }
    switch (in.opcode) {
      case LOAD:
        registers[in.destination] = knowledge.operands[in.a];
        continue;
      case STORE:
        // Lanes that are not codes are stored as they are.
        if (!codes_[in.destination] || registers[in.a].keeps_in_range()) continue;
        if (!registers[in.a].keeps_below_limit()) return Range::ANY;
        range = Range::NOT_LARGE;
        continue;
      case SPREAD:
        registers[in.destination] = space.result_bounds[in.a];
        continue;
      case ROUND:
        exact = registers[in.a];
        then_round = is_code_format(in.format);
        break;
      default: {
        const bool immediate = in.opcode == ADD_CONSTANT || in.opcode == MUL_CONSTANT;
        const Bounds a = in.a < 0 ? Bounds::of(in.imm0) : registers[in.a];
        const Bounds b = immediate ? Bounds::of(in.imm0) : second(in.b, in.b_is);
        exact = in.opcode == CONSTANT || in.opcode == CONSTANT_BITS ? a : of(in.opcode, a, b, in.c);
        if (in.is_pair()) exact = bounds_of(in.then_opcode, exact, second(in.c, in.b_is));
      }
    }
    if (then_round) {
      if (!exact.keeps_below_limit()) return Range::ANY;
      if (!exact.keeps_in_range()) range = Range::NOT_LARGE;
      if (!exact.coarse) exact = exact.rounded();
    }
    registers[in.destination] = exact;
  }
  return range;
}

const SpecialisedCode::Quick& SpecialisedCode::quick_for(const Knowledge& knowledge) const {
  const auto is_power = [&](int operand) {
    const Bounds& bounds = knowledge.operands[operand];
    return bounds.least == bounds.most && is_power_of_two(std::bit_cast<uint32_t>(bounds.most));
  };
  const bool powers =
      quick_powers_.ordinary != nullptr && std::all_of(factors_.begin(), factors_.end(), is_power);
  return powers ? quick_powers_ : quick_;
}

bool SpecialisedCode::runs_everywhere(const Machine& machine) const {
  if (machine.context.numerics != Numerics::DLFLOAT16) return false;
  return std::all_of(streams_.begin(), streams_.end(), [&](const Stream& stream) {
    if (stream.source != Source::OPERAND && stream.source != Source::SPLAT_OPERAND) return true;
    const std::vector<int64_t>& limits = machine.step.operands[stream.number].limits;
    return std::all_of(limits.begin(), limits.end(), [](int64_t limit) { return limit < 0; });
  });
}

bool SpecialisedCode::run(const TileView& tile, Workspace& space,
                          std::span<const TotalsAt> totals) const {
  if (tile.machine.context.numerics != Numerics::DLFLOAT16) return false;
  if (const SpecialisedCode* before = std::exchange(space.seen_by, nullptr))
    before->assume_seen(space);
  if (has_assumptions(space) && run_guarded(tile, space, totals)) return true;
  Knowledge knowledge;
  if (!know_operands(tile, space, knowledge, false)) return false;
  const bool in_range = std::all_of(streams_.begin(), streams_.end(), [&](const Stream& stream) {
    return stream.source != Source::OPERAND || !loaded_[stream.number] || !codes_[stream.number] ||
           knowledge.operands[stream.number].keeps_in_range();
  });
  const Range range = in_range ? range_of(space, knowledge) : Range::ANY;
  const bool ordinary = range == Range::ORDINARY && quick_.ordinary != nullptr;
  const CompiledVectors* code = any_.get();
  if (in_range && checked_ != nullptr) code = checked_.get();
  if (range == Range::NOT_LARGE && not_large_ != nullptr) code = not_large_.get();
  if (ordinary) code = quick_for(knowledge).ordinary.get();
  run_parts(*code, tile, space, totals);
  for (int reg : lasting_) space.bounds[reg] = ordinary ? knowledge.registers[reg] : Bounds{};
  if (ordinary && quick_.guarded != nullptr && !has_assumptions(space)) {
    space.seen_by = this;
    for (const Stream& stream : streams_) {
      if (stream.source != Source::OPERAND && stream.source != Source::SPLAT_OPERAND) continue;
      space.operands_seen[stream.number] = knowledge.operands[stream.number];
    }
  }
  return true;
}

// False when nothing was done: the bounds of earlier tiles do not show that all stays ordinary, or
// an operand ends inside of the tile.
bool SpecialisedCode::run_guarded(const TileView& tile, Workspace& space,
                                  std::span<const TotalsAt> totals) const {
  const auto is_known = [&](int operand) { return (space.operands_known >> operand & 1) != 0; };
  if (tile.whole_block && std::all_of(guards_.begin(), guards_.end(), is_known)) return false;
  Knowledge knowledge;
  if (space.assured == this) {
    note_exceptions(run_parts(*space.assured_code, tile, space, totals), tile, space);
    return true;
  }
  if (!know_operands(tile, space, knowledge, true)) return false;
  const bool in_range = std::all_of(streams_.begin(), streams_.end(), [&](const Stream& stream) {
    return stream.source != Source::OPERAND || !loaded_[stream.number] || !codes_[stream.number] ||
           knowledge.operands[stream.number].keeps_in_range();
  });
  if (!in_range || range_of(space, knowledge) != Range::ORDINARY) return false;
  const CompiledVectors& guarded = *quick_for(knowledge).guarded;
  const int64_t cold = run_parts(guarded, tile, space, totals);
  for (int reg : lasting_) space.bounds[reg] = cold == 0 ? knowledge.registers[reg] : Bounds{};
  for (int operand : guards_) {
    if (cold == 0 && tile.whole_block) {
      space.operand_bounds[operand] = knowledge.operands[operand];
      space.operands_known |= 1u << operand;
    }
  }
  if (depends_on_guards_ && runs_everywhere(tile.machine) && has_fixed_splats(tile)) {
    space.assured = this;
    space.assured_code = &guarded;
  }
  note_exceptions(cold, tile, space);
  return true;
}

// Where there are many, the next tile is looked at again.
void SpecialisedCode::note_exceptions(int64_t cold, const TileView& tile, Workspace& space) const {
  constexpr int64_t kSome = 16 * 32;  // lanes, with one exception among them
  if (cold * kSome <= tile.lanes) return;
  for (int operand : guards_) space.operands_assumed &= ~(1u << operand);
  space.assured = nullptr;
}

// With as much room as there is while all stays ordinary.
void SpecialisedCode::assume_seen(Workspace& space) const {
  const auto with_room = [&](int quarters, Knowledge& knowledge) {
    const float room = std::exp2(static_cast<float>(quarters) / 4);
    for (const Stream& stream : streams_) {
      if (stream.source != Source::OPERAND && stream.source != Source::SPLAT_OPERAND) continue;
      knowledge.operands[stream.number] = space.operands_seen[stream.number];
    }
    for (int operand : guards_) {
      Bounds& bounds = knowledge.operands[operand];
      // What later phases make of more room for large numbers may be out of range: e^-x.
      bounds.least /= room;
      bounds.most = decode_dlfloat16(encode_dlfloat16(bounds.most * std::min(room, 1.25f)));
      if (!bounds.keeps_in_range()) bounds = space.operands_seen[operand];
    }
    return quarters == 0 || range_of(space, knowledge) == Range::ORDINARY;
  };
  const auto has_codes = [&](int operand) {  // not zeros only
    const Bounds& seen = space.operands_seen[operand];
    return seen.most > 0 && seen.least <= seen.most;
  };
  space.assured = nullptr;
  if (!std::all_of(guards_.begin(), guards_.end(), has_codes)) return;
  Knowledge known;
  int quarters = most_room_;
  if (!with_room(most_room_, known)) {
    quarters = 0;
    for (int by = most_room_ / 2; by > 0; by /= 2) {
      if (with_room(quarters + by, known)) quarters += by;
    }
    with_room(quarters, known);
  }
  for (int operand : guards_) {
    space.operand_assumptions[operand] = known.operands[operand];
    space.operands_assumed |= 1u << operand;
  }
}

int64_t SpecialisedCode::run_parts(const CompiledVectors& code, const TileView& tile,
                                   Workspace& space, std::span<const TotalsAt> totals) const {
  const TileStep& step = tile.machine.step;
  VectorFrame frame;
  CodeLimits limits[kMaxGuards];
  if (&code == quick_.guarded.get() || &code == quick_powers_.guarded.get()) {
    frame.limits = limits;
    for (size_t i = 0; i < guards_.size(); i++) {
      const Bounds& bounds = space.operand_assumptions[guards_[i]];
      limits[i].set(encode_dlfloat16(bounds.least), encode_dlfloat16(bounds.most));
    }
  }
  const size_t words = 1 + streams_.size();
  if (space.starts.size() < words * tile.parts.size()) space.starts.resize(words * kMaxGroups);
  const int64_t groups = tile.lanes / step.lanes, kept_groups = tile.kept_lanes / step.lanes;
  const size_t splats = static_cast<size_t>(groups) * streams_.size();
  if (space.splats.size() < splats) space.splats.resize(splats);
  int64_t* start = space.starts.data();
  for (const Part& part : tile.parts) {
    *start = part.run->count;
    start += words;
  }
  for (size_t i = 0; i < streams_.size(); i++) {
    const int number = streams_[i].number;
    int64_t* to = space.starts.data() + 1 + i;
    const auto set = [&](const void* at) {
      *to = static_cast<int64_t>(reinterpret_cast<intptr_t>(at));
      to += words;
    };
    // Groups of a part lie `apart` bytes from each other, part after part; those of
    // results begin again after all kept ones.
    const auto set_rows = [&](const void* first, int64_t apart, int64_t period) {
      frame.streams[i].step = apart;
      int64_t group = 0;
      for (const Part& part : tile.parts) {
        set(static_cast<const std::byte*>(first) + group * apart);
        group += part.run->count;
        if (group == period) group = 0;
      }
    };
    constexpr int64_t kWord = sizeof(uint32_t), kMomentBytes = kMomentParts * sizeof(double);
    uint32_t* values = space.splats.data() + i * groups;
    switch (streams_[i].source) {
      case Source::OPERAND:
        frame.streams[i].step = tile.walk.kept.back().strides[number];
        for (const Part& part : tile.parts) set(first_of(tile, part, number));
        break;
      case Source::SPLAT_OPERAND: {
        const int64_t stride = tile.walk.kept.back().strides[number];
        frame.streams[i].step = stride == 0 ? 0 : kWord;
        const std::byte* last = nullptr;
        for (const Part& part : tile.parts) {
          const std::byte* at = first_of(tile, part, number);
          if (stride == 0 && at == last) {
            set(values - 1);
            continue;
          }
          set(values);
          for (int64_t g = 0; g < (stride == 0 ? 1 : part.run->count); g++) {
            *values++ =
                load_splat(step.operands[number], at + g * stride, tile.machine.context.numerics);
          }
          last = at;
        }
        break;
      }
      case Source::RESULT_SPLAT:
        set_rows(space.results[number], step.result_lanes() * kWord, kept_groups);
        break;
      case Source::RESULT_RECIPROCAL: {
        const uint32_t* result = space.results[number];
        for (int64_t g = 0; g < kept_groups; g++, result += step.result_lanes()) {
          values[g] = std::bit_cast<uint32_t>(1.0f / std::bit_cast<float>(*result)) + 1;
        }
        set_rows(values, kWord, kept_groups);
        break;
      }
      case Source::RESULT_LANES:
        set_rows(space.results[number], step.lanes * kWord, kept_groups);
        break;
      case Source::REGISTER:
        set_rows(space.registers[number], tile.still >> number & 1 ? 0 : step.lanes * kWord, -1);
        break;
      case Source::TOTAL:
        set_rows(totals[number].lanes, step.lanes * kWord, kept_groups);
        break;
      case Source::SUMS:
        set_rows(totals[number].sums, kMomentBytes, kept_groups);
        break;
      case Source::SQUARES:
        set_rows(totals[number].squares, kMomentBytes, kept_groups);
        break;
    }
  }
  frame.parts = static_cast<int64_t>(tile.parts.size());
  frame.starts = space.starts.data();
  frame.bytes_of_start = static_cast<int64_t>(words * sizeof(int64_t));
  code.run_parts(frame);
  return -frame.cold;
}

// Whether operands of one value, such as the constants of a program, have it in all tiles of a
// task.
bool SpecialisedCode::has_fixed_splats(const TileView& tile) const {
  const auto& bases = tile.machine.bases;
  const size_t operands = tile.machine.step.operands.size();
  return std::all_of(streams_.begin(), streams_.end(), [&](const Stream& stream) {
    if (stream.source != Source::SPLAT_OPERAND) return true;
    const auto stays = [&](const TileDim& dim) { return dim.strides[stream.number] == 0; };
    for (size_t i = stream.number; i < bases.size(); i += operands) {
      if (bases[i] != bases[stream.number]) return false;  // one for each core
    }
    return std::all_of(tile.walk.kept.begin(), tile.walk.kept.end(), stays) &&
           std::all_of(tile.walk.reduced.begin(), tile.walk.reduced.end(), stays);
  });
}

}  // namespace spyre::card
