// What becomes of the sums of a matrix product: they are rounded and stored, or go through the
// epilogue of the step, which stores.
//
// Example: results.store(product, list, {.row = 96, .rows = 48, .stick = 0, .sticks = 2}, sums);
#pragma once

#include <vector>

#include "matmul/matmul.h"
#include "matmul/operands.h"
#include "tile/machine.h"

namespace spyre::card {

class MatmulResults {
 public:
  // Rows of a row list and sticks of out.
  struct Range {
    int64_t row, rows;
    int64_t stick, sticks;
  };

  MatmulResults(const MatmulStep& step, const StepHead& head, const RunContext& context, Simd simd);

  // `sums` are [sticks][rows][lanes of a stick], aligned to 32 bytes; an epilogue works in them.
  void store(const MatmulStep::Product& product, const MatmulStep::RowList& list,
             const Range& range, float* sums) const;

 private:
  // Rows of a range that lie in one entry of the row list.
  struct Piece {
    size_t entry;
    int64_t row;    // in the entry
    int64_t first;  // in the range
    int64_t count;
  };
  template <class Visit>
  static void for_each_piece(const MatmulStep::RowList& list, const Range& range, Visit&& visit);

  void round(const MatmulStep::Product& product, const MatmulStep::RowList& list,
             const Range& range, const float* sums) const;
  void run_epilogue(const MatmulStep::Product& product, const MatmulStep::RowList& list,
                    const Range& range, float* sums) const;
  // Whether what is the same in all rows of an entry is the same in all of a range.
  bool shares(const MatmulStep::Product& product, const MatmulStep::RowList& list,
              const Range& range) const;
  bool shares(const MatmulStep::Product& product, size_t entry, size_t other) const;
  void place(const MatmulStep::Product& product, const Piece& piece, int64_t row, int64_t stick,
             TileRun& run) const;

  const MatmulStep& step_;
  const int64_t lanes_;      // of a stick
  const ConvertRows pack_;   // sums to out
  const bool is_dlfloat16_;  // out is, for which there are quicker ways
  void (*const encode_)(std::byte*, int64_t, const float*, int64_t);  // the quickest, or nullptr
  std::vector<Bases> operands_;    // of the epilogue: out, then the others
  std::vector<int> shared_;        // operands of loads that give the same in all rows of an entry
  uint32_t shared_registers_ = 0;  // bit by register: where these are
  Machine machine_;                // its bases are those of the first core
  bool has_long_tiles_;            // machine code runs all of them
};

}  // namespace spyre::card
