// Matrix products of a device program (step kind 2): out = x @ y with batches, accumulated in
// float32.
//
// In: the words of the step, see docs/formats/program.md. Rows may choose their y by a tensor of
// numbers (step kind 11, mixtures of experts): what they share is then found at each run.
//
// Parsing groups the cores' slices by what they share: slices that use the same y form one product
// of all their rows, so y is unpacked once whatever the number of cores or batches.
//
// Every element of out is one sum over k in rising order, each term added by a fused multiply-add,
// or two at a time (matmul/winograd_pairs.h) if the context asks for it and the product is large.
// It depends neither on threads nor on how cores divide rows and columns of a large product. Where
// cores divide k, their sums are added in order of core number. What follows the sums, the
// epilogue, runs on the tile machine before anything is stored.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "numerics/convert.h"
#include "step/steps.h"
#include "tile/tile.h"

namespace spyre::card {

// How an operand lies: by batch strides at parse time, then by rows and sticks.
struct MatmulOperand {
  DataFormat format = DataFormat::INVALID;
  std::vector<int64_t> batch_strides;
  int64_t row_stride = 0;    // m of x and out, k of y
  int64_t stick_stride = 0;  // k of x, n of y and out
  OperandAddress address;
};

struct MatmulStep {
  // A place in an operand: bytes from where it begins on a core.
  struct Place {
    int core = 0;
    int64_t offset = 0;
    auto operator<=>(const Place&) const = default;
  };
  // Rows of x and what is needed to multiply them with the parts of y. Several parts: cores that
  // divide k, in order of core number.
  struct Rows {
    std::vector<Place> x;  // by part
    int64_t count = 0;
    auto operator<=>(const Rows&) const = default;
  };
  // Rows, one below the other, that one y or several multiply.
  struct RowList {
    std::vector<Rows> rows;
    std::vector<int64_t> depths;  // K by part
    int64_t count = 0;            // of all rows
    int64_t users = 0;            // products
    auto operator<=>(const RowList&) const = default;
  };
  struct Product {
    int rows = 0;                // number of the row list
    std::vector<Place> y;        // by part
    std::vector<Place> results;  // by entry of the row list, then as those of the step
    int64_t columns = 0;         // valid ones; whole sticks are stored
  };

  // Which y a row has: numbers of equal matrices, read when the step runs.
  struct Choice {
    int64_t count = 0;             // of matrices
    int64_t stride = 0;            // bytes from one to the next
    std::vector<int64_t> strides;  // of the numbers: batch, rows
    bool along_sticks = false;     // numbers of neighbouring rows are neighbours in a stick
    int64_t stick_stride = 0;
    OperandAddress address;
    std::vector<int64_t> first;  // by core, the number of its first row
  };
  // What cores compute, from which `products` are made.
  struct Extents {
    std::vector<int64_t> batch;
    int64_t rows, columns, depth;
  };

  bool large = false;  // the whole product, however cores divide it
  MatmulOperand x, y;
  std::vector<MatmulOperand> results;  // out, then the other operands of the epilogue
  std::vector<RowList> row_lists;
  std::vector<Product> products;
  // The epilogue runs on rows of sticks with the sums in register 0. Without instructions the sums
  // are rounded and stored to out.
  TileStep epilogue;                          // its operands are `results`
  std::vector<TileInstruction> shared_loads;  // that give the same in all rows of an entry
  std::vector<TileInstruction> instructions;  // all others
  std::shared_ptr<const TileCode> code;       // those as machine code, or nothing
  std::optional<Choice> choice;               // then there are no products yet
  std::vector<Extents> extents;               // by core
  std::vector<std::vector<int>> groups;       // of cores that divide k

  const MatmulOperand& out() const { return results[0]; }
  bool has_epilogue() const { return !instructions.empty() || !shared_loads.empty(); }
};

MatmulStep parse_matmul(WordReader& reader, const StepHead& head);
MatmulStep::Choice read_choice(WordReader& reader, const StepHead& head, size_t batch_dims);
// One whose rows choose their y (step kind 11).
MatmulStep parse_chosen_matmul(WordReader& reader, const StepHead& head);
// The step with the products that the numbers in memory say: rows of one matrix are one product.
MatmulStep with_products(const MatmulStep& step, const StepHead& head, const RunContext& context);
void run_matmul(const MatmulStep& step, const StepHead& head, const RunContext& context);
// With a given form of SIMD; for tests.
void run_matmul(const MatmulStep& step, const StepHead& head, const RunContext& context, Simd simd);

}  // namespace spyre::card
