// The inputs of a matrix product as float32: rows of x, panels of y.
//
// Example: inputs.unpack_panels(inputs.y(product, 0), {0, 256, 64, 128}, to) unpacks rows 0 to 255
// and columns 64 to 191.
#pragma once

#include <string>

#include "matmul/kernels.h"
#include "matmul/matmul.h"
#include "matmul/operands.h"

namespace spyre::card {

class MatmulInputs {
 public:
  struct Range {
    int64_t row, rows;
    int64_t column, columns;  // the number is a multiple of 16
  };

  MatmulInputs(const MatmulStep& step, const StepHead& head, const RunContext& context, Simd simd);

  // What the rows of a range of y are multiplied with, and where the sums are.
  struct Factors {
    const float* a;
    int64_t lda;
    float* c;
    int64_t ldc;
    int64_t rows;
    Continuation continuation;
  };

  // Without `unpack`, `rows`, `direct` and `fresh` for formats that are rare.
  const MatmulKernels::Format& y_kernels() const { return y_kernels_; }
  // The first row of y.
  StickRow y(const MatmulStep::Product& product, size_t part) const {
    return stick_row(y_[product.y[part]], step_.y);
  }

  // Rows of a row list, `step` floats apart. What fills up the last 16 columns is never used.
  void unpack_rows(const MatmulStep::RowList& list, size_t part, const Range& range, float* to,
                   int64_t step) const;
  // [columns / 16][rows][16], in the order of columns that the kernels of the format want.
  void unpack_panels(const StickRow& y, const Range& range, float* to) const;
  // The same, and c = a * y on the way.
  void multiply_fresh(const StickRow& y, const Range& range, const Factors& factors,
                      float* panels) const;

 private:
  StickRow stick_row(std::byte* begin, const MatmulOperand& operand) const;
  // Rows are `stride` bytes apart and become `step` floats apart.
  void unpack_columns(const StickRow& x, int64_t stride, const Range& range, float* to,
                      int64_t step) const;
  int64_t alike(const MatmulStep::RowList& list, size_t part, size_t entry, int64_t most) const;

  const MatmulStep& step_;
  const std::string& name_;
  const ConvertRows unpack_x_, unpack_y_;
  const MatmulKernels::Format x_kernels_, y_kernels_;
  const Bases x_, y_;
};

}  // namespace spyre::card
