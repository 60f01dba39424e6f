// Bodies of tile programs as machine code: one pass over the operands instead of one over a tile
// for each instruction, with the same bits.
//
// A list of instructions is translated in several forms. The first is for tiles whose magnitudes,
// as bounds of their operands show, never leave the range of DLFloat16: there decoding, rounding
// and encoding are a few operations. The next one is the same for bounds that operands had in an
// earlier tile and may have again: it looks at their codes as it goes. Of these two there may be a
// second pair, for tiles whose factors of one value are powers of two. The third is for tiles where
// bounds show that nothing is too large, and looks whether something is too small; the fourth one
// looks for both. Lanes where one of them sees something else are computed by the last form, which
// is for everything. Reductions can be part of the code. What
// cannot be translated (rare instructions and formats, the ends of operands that stop inside of a
// tile) is left to the interpreter.
//
// Example: auto code = SpecialisedCode::translate(step, body, {}, {}); if (!code ||
// !code->run(tile, space, {})) run_instructions(body, tile, space);
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "jit/machine_code.h"
#include "tile/machine.h"

namespace spyre::card {

inline bool is_code_format(DataFormat format) { return format == DataFormat::SEN169_FP16; }
// Of a float, and neither zero, infinite nor NaN.
inline bool is_power_of_two(uint32_t bits) {
  return (bits & 0x7fffff) == 0 && (bits & 0x7f800000) != 0 && (bits & 0x7f800000) != 0x7f800000;
}
inline bool is_comparison(int opcode) { return (opcode >= EQ && opcode <= GE) || opcode == ISNAN; }

class SpecialisedCode final : public TileCode {
 public:
  // `lasting` are the registers that are live afterwards, other than `reductions`. Nothing
  // when the instructions cannot be translated. Equal instructions on equal operands are translated
  // once in a process.
  static std::shared_ptr<const TileCode> translate(const TileStep& step,
                                                   const std::vector<TileInstruction>& instructions,
                                                   std::vector<int> lasting,
                                                   const std::vector<TileReduction>& reductions);

  bool runs_everywhere(const Machine& machine) const override;
  bool run(const TileView& tile, Workspace& space, std::span<const TotalsAt> totals) const override;
  bool reduces() const override { return !reductions_.empty(); }
  bool has_lasting() const override { return !lasting_.empty(); }

 private:
  friend class TileTranslator;
  // Where a stream of the code is found.
  enum class Source : int8_t {
    OPERAND,
    SPLAT_OPERAND,
    RESULT_LANES,
    RESULT_SPLAT,
    RESULT_RECIPROCAL,  // a little more than that, see TileTranslator::divide
    REGISTER,
    TOTAL,
    SUMS,
    SQUARES
  };
  struct Stream {
    Source source;
    int number;
    int64_t apart;  // bytes from 32 lanes to the next ones
    bool operator==(const Stream&) const = default;
  };

  struct Knowledge;
  // The first two forms: there may be others for factors that are powers of two, because such
  // products need no rounding.
  struct Quick {
    std::unique_ptr<CompiledVectors> ordinary, guarded;
  };
  // False when an operand ends inside of the tile. `assume`: operands with guards have the bounds
  // of earlier tiles.
  bool know_operands(const TileView& tile, Workspace& space, Knowledge& knowledge,
                     bool assume) const;
  bool run_guarded(const TileView& tile, Workspace& space, std::span<const TotalsAt> totals) const;
  // What this code has seen in a tile it may expect in the next ones.
  void assume_seen(Workspace& space) const;
  void note_exceptions(int64_t cold, const TileView& tile, Workspace& space) const;
  bool has_assumptions(const Workspace& space) const;
  // What bounds show: that all is ordinary, that nothing is too large, or neither.
  enum class Range : int8_t { ORDINARY, NOT_LARGE, ANY };
  Range range_of(const Workspace& space, Knowledge& knowledge) const;
  const Quick& quick_for(const Knowledge& knowledge) const;
  bool has_fixed_splats(const TileView& tile) const;
  // Returns how often a guard led to the form for everything.
  int64_t run_parts(const CompiledVectors& code, const TileView& tile, Workspace& space,
                    std::span<const TotalsAt> totals) const;

  std::vector<TileInstruction> instructions_;
  std::vector<int> lasting_;
  std::vector<TileReduction> reductions_;
  std::vector<Stream> streams_;
  std::vector<bool> codes_;   // by operand: it is DLFloat16
  std::vector<bool> loaded_;  // by operand
  std::vector<int> guards_;   // operands whose codes the guarded form looks at
  // For numbers that are smaller than those seen, in quarters of a power of two. Later phases rely
  // on what is assumed of a block: with differences of very small numbers they are not ordinary.
  int most_room_ = 0;
  bool depends_on_guards_ = false;  // on nothing else, but for splats
  std::vector<bool> divides_;  // by instruction: it multiplies with a reciprocal in ordinary forms
  std::vector<int> factors_;   // operands of one value that lanes are multiplied with
  Quick quick_, quick_powers_;
  std::unique_ptr<CompiledVectors> not_large_, checked_, any_;
};

}  // namespace spyre::card
