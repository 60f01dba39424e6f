// Matrix products of a device program (step kind 2): out = x @ y with batches, accumulated in
// float32.
//
// In: the words of the step, see docs/formats/program.md. Parsing groups the cores' slices by what
// they share: slices that use the same y form one product of all their rows, so y is unpacked once
// whatever the number of cores or batches.
//
// Every element of out is one sum over k in rising order, each term added by a fused multiply-add.
// It depends neither on threads nor on how cores divide rows and columns. Where cores divide k,
// their sums are added in order of core number.
#pragma once

#include <cstdint>
#include <vector>

#include "convert.h"
#include "steps.h"

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
    int rows = 0;            // number of the row list
    std::vector<Place> y;    // by part
    std::vector<Place> out;  // by entry of the row list
    int64_t columns = 0;     // elements, whole sticks of out
  };

  MatmulOperand x, y, out;
  std::vector<RowList> row_lists;
  std::vector<Product> products;
};

MatmulStep parse_matmul(WordReader& reader, const StepHead& head);
void run_matmul(const MatmulStep& step, const StepHead& head, const RunContext& context);
// With a given form of SIMD; for tests.
void run_matmul(const MatmulStep& step, const StepHead& head, const RunContext& context, Simd simd);

}  // namespace spyre::card
