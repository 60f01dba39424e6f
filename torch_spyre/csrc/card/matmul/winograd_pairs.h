// Sums of products by pairs, for processors that add beside their multiplications.
//
// Two terms of a sum take one multiplication less (Winograd's inner product, 1968):
//
//   x0 y0 + x1 y1 = (x0 + y1) (x1 + y0) - x0 x1 - y0 y1
//
// What is subtracted depends on a row of x or on a column of y alone and is computed once for it. A
// processor with units for additions beside those for multiplications (Zen 4 and later) needs
// three quarters of the time. What it costs: sums are as exact as the squares of x and y allow, not
// their products. So rows and columns are scaled by powers of two to be alike, and a result that
// is small beside the squares, a zero above all, or whose row and column are too different, is
// computed again term by term. docs/decisions/0048 has the error of the rest.
//
// A block of depth of a row or column decides all by itself: a result depends neither on the rows
// and columns beside it nor on how these are divided.
#pragma once

#include <cstdint>

#include "matmul/kernels.h"

namespace spyre::card {

// After each row and some panels there is room for what is known of it.
constexpr int64_t kRowFacts = kPanel;  // floats
constexpr int64_t kPanelFacts = 3;     // for each panel, as many as it has columns
constexpr int64_t kPairRows = 8;       // multiplied together; as many may be read after the last

struct PairKernels {
  // Scales rows of floats, lda apart, in place; what is known of a row goes to its last kRowFacts.
  void (*prepare_rows)(float* a, int64_t lda, int64_t rows, int64_t depth);
  // The same for panels [columns / 16][depth][16], after which follow [columns / 16][kPanelFacts]
  // [16].
  void (*prepare_panels)(float* panels, int64_t columns, int64_t depth);
  // As the kernels of a format, with rows and panels as they were prepared. The depth is even.
  MultiplyPanels multiply;
};

// Whether this processor is faster with them. Those that add and multiply with the same units, as
// Intel's do, are slower.
bool pairs_pay();
// nullptr for forms of SIMD that do not have them.
const PairKernels* pair_kernels(Simd simd);

namespace simd_avx512 {
extern const PairKernels kPairKernels;
}

}  // namespace spyre::card
