#include "matmul/results.h"

#include <algorithm>
#include <memory>

namespace spyre::card {
namespace {

ConvertRows packer(DataFormat format, Numerics numerics, const ConvertTable& table) {
  if (format == DataFormat::BFLOAT16) return table.from_card[int(Conversion::BF16_F32)];
  if (format == DataFormat::IEEE_FP32) return table.to_card[int(Conversion::COPY_4)];
  return table
      .to_card[int(is_dlfloat16(format, numerics) ? Conversion::F32_DLF16 : Conversion::F32_HALF)];
}

}  // namespace

MatmulResults::MatmulResults(const MatmulStep& step, const StepHead& head,
                             const RunContext& context, Simd simd)
    : step_(step),
      lanes_(step.epilogue.lanes),
      pack_(packer(step.out().format, context.numerics, convert_table(simd))),
      is_dlfloat16_(is_dlfloat16(step.out().format, context.numerics)),
      encode_(matmul_kernels(simd).encode_dlfloat16),
      machine_{step.epilogue,       context, tile_table(simd),
               convert_table(simd), {},      context.translates} {
  for (const MatmulOperand& operand : step.results) {
    operands_.emplace_back(operand, head, context);
    machine_.bases.push_back(operands_.back().first());
  }
  for (const TileInstruction& load : step.shared_loads) {
    shared_.push_back(load.a);
    shared_registers_ |= 1u << load.destination;
  }
  has_long_tiles_ =
      step.code != nullptr && machine_.translated && step.code->runs_everywhere(machine_);
}

void MatmulResults::store(const MatmulStep::Product& product, const MatmulStep::RowList& list,
                          const Range& range, float* sums) const {
  if (step_.has_epilogue()) {
    run_epilogue(product, list, range, sums);
  } else {
    round(product, list, range, sums);
  }
}

template <class Visit>
void MatmulResults::for_each_piece(const MatmulStep::RowList& list, const Range& range,
                                   Visit&& visit) {
  const int64_t end = range.row + range.rows;
  int64_t begin = 0;
  for (size_t i = 0; i < list.rows.size() && begin < end; begin += list.rows[i++].count) {
    const int64_t from = std::max(range.row, begin);
    const int64_t to = std::min(end, begin + list.rows[i].count);
    if (from < to) visit(Piece{i, from - begin, from - range.row, to - from});
  }
}

void MatmulResults::round(const MatmulStep::Product& product, const MatmulStep::RowList& list,
                          const Range& range, const float* sums) const {
  const MatmulOperand& out = step_.out();
  for_each_piece(list, range, [&](const Piece& piece) {
    std::byte* to = operands_[0][product.results[piece.entry * operands_.size()]] +
                    piece.row * out.row_stride + range.stick * out.stick_stride;
    const float* from = sums + piece.first * lanes_;
    for (int64_t s = 0; s < range.sticks; ++s) {
      if (is_dlfloat16_ && encode_ != nullptr) {
        encode_(to, out.row_stride, from, piece.count);
      } else if (is_dlfloat16_ && out.row_stride == kStickBytes) {
        machine_.table.encode_dlfloat16(to, reinterpret_cast<const uint32_t*>(from),
                                        piece.count * lanes_);
      } else {
        pack_(to, out.row_stride, reinterpret_cast<const std::byte*>(from),
              lanes_ * int64_t{sizeof(float)}, piece.count, lanes_, Stores::CACHED);
      }
      to += out.stick_stride;
      from += range.rows * lanes_;
    }
  });
}

// As many rows of one stick at a time as a register has room for; register 0 is the sums
// themselves. Machine code needs no room, but for one group of what is the same in all rows.
void MatmulResults::run_epilogue(const MatmulStep::Product& product,
                                 const MatmulStep::RowList& list, const Range& range,
                                 float* sums) const {
  static thread_local std::unique_ptr<Workspace> kept_space;
  if (!kept_space) kept_space = std::make_unique<Workspace>();
  Workspace& space = *kept_space;
  constexpr size_t kNone = SIZE_MAX;
  const bool is_long = has_long_tiles_ && shares(product, list, range);
  const int64_t most = (is_long ? kLongTileLanes : kTileLanes) / lanes_;
  Part parts[kMaxGroups];
  size_t entries[kMaxGroups];  // of the parts
  TileView view{machine_, step_.epilogue.walks[0], 0, {}, 0};
  view.still = is_long ? shared_registers_ : 0;
  for (int64_t s = 0; s < range.sticks; ++s) {
    size_t loaded = kNone;  // the entry whose shared operands are in the registers
    size_t count = 0;       // of parts
    int64_t groups = 0;     // in them
    const auto load_shared = [&] {
      if (shared_.empty()) return;
      const bool alike = std::all_of(entries + 1, entries + count, [&](size_t entry) {
        return shares(product, entries[0], entry);
      });
      if (alike && loaded != kNone && shares(product, loaded, entries[0])) return;
      const int64_t own = space.runs[0].count;
      const int64_t loads = is_long ? 1 : alike ? most : groups;
      if (alike) space.runs[0].count = loads;  // for all that follow, too: they are the same rows
      view.parts = {parts, alike ? 1 : count};
      view.lanes = loads * lanes_;
      run_instructions(step_.shared_loads, view, space);
      space.runs[0].count = own;
      loaded = alike ? entries[0] : kNone;
    };
    const auto flush = [&] {
      if (groups == 0) return;
      load_shared();
      view.parts = {parts, count};
      view.lanes = groups * lanes_;
      space.registers[0] = reinterpret_cast<uint32_t*>(sums);
      space.bounds[0] = {};
      run_instructions(step_.code, step_.instructions, view, space);
      sums += view.lanes;
      count = groups = 0;
    };
    for_each_piece(list, range, [&](const Piece& piece) {
      for (int64_t row = 0; row < piece.count;) {
        TileRun& run = space.runs[count];
        run.count = std::min(most - groups, piece.count - row);
        run.stick = 0;
        place(product, piece, row, range.stick + s, run);
        parts[count] = {&run, nullptr};
        entries[count++] = piece.entry;
        groups += run.count;
        row += run.count;
        if (groups == most) flush();
      }
    });
    flush();
  }
}

bool MatmulResults::shares(const MatmulStep::Product& product, const MatmulStep::RowList& list,
                           const Range& range) const {
  if (shared_.empty()) return true;
  size_t first = SIZE_MAX;
  bool all = true;
  for_each_piece(list, range, [&](const Piece& piece) {
    if (first == SIZE_MAX) first = piece.entry;
    all = all && shares(product, first, piece.entry);
  });
  return all;
}

// Whether what is the same in all rows of an entry is the same in those of another one.
bool MatmulResults::shares(const MatmulStep::Product& product, size_t entry, size_t other) const {
  if (entry == other) return true;
  const MatmulStep::Place* places = product.results.data();
  return std::all_of(shared_.begin(), shared_.end(), [&](int operand) {
    return places[entry * operands_.size() + operand] == places[other * operands_.size() + operand];
  });
}

// Where the operands are in a row of a piece, from the bases of the machine.
void MatmulResults::place(const MatmulStep::Product& product, const Piece& piece, int64_t row,
                          int64_t stick, TileRun& run) const {
  const MatmulStep::Place* places = product.results.data() + piece.entry * operands_.size();
  for (size_t i = 0; i < operands_.size(); ++i) {
    const MatmulOperand& operand = step_.results[i];
    run.offsets[i] = operands_[i][places[i]] - machine_.bases[i] +
                     (piece.row + row) * operand.row_stride + stick * operand.stick_stride;
  }
}

}  // namespace spyre::card
