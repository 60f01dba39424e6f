// The inner loops of matmul/matmul.h, in one table for each form of SIMD with the same results to
// the bit.
//
// A result is a sum over k in rising order of fused multiply-adds, starting from zero, whatever the
// kernel. Sums may be taken up again: `first` starts from zero and not from what is in c, `last`
// makes every NaN the same one (which one of two a processor hands on is its own affair).
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics/convert.h"

namespace spyre::card {

constexpr int64_t kPanel = 16;      // columns of a panel
constexpr int64_t kMicroRows = 6;   // rows that are multiplied together
constexpr int64_t kDirectRows = 5;  // most rows for which y is unpacked on the fly

struct Continuation {
  bool first, last;
};

// c[rows, columns] from a[rows, depth] (rows are lda apart) and panels b[columns / 16][depth][16],
// whose columns are in the order in which UnpackPanels of the format leaves them; c has rows ldc
// apart, in that order too until `last`. Any number of rows.
using MultiplyPanels = void (*)(const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                                int64_t rows, int64_t columns, int64_t depth,
                                Continuation continuation);
// The same from elements of y as they lie in memory, rows y_stride bytes apart, which become
// panels on the way.
using MultiplyFresh = void (*)(const float* a, int64_t lda, const std::byte* y, int64_t y_stride,
                               float* panels, float* c, int64_t ldc, int64_t rows, int64_t columns,
                               int64_t depth, Continuation continuation);
// The same without panels; columns is a multiple of 16. At most kDirectRows rows.
using MultiplyDirect = void (*)(const float* a, int64_t lda, const std::byte* y, int64_t y_stride,
                                float* c, int64_t ldc, int64_t rows, int64_t columns, int64_t depth,
                                Continuation continuation);

// Elements of y as panels, one after another: [columns / 16][depth][16].
using UnpackPanels = void (*)(const std::byte* y, int64_t y_stride, float* panels, int64_t columns,
                              int64_t depth);

// Elements of x as rows of floats, `step` apart; columns is a multiple of 16.
using UnpackRows = void (*)(const std::byte* x, int64_t x_stride, float* to, int64_t step,
                            int64_t rows, int64_t columns);

struct MatmulKernels {
  // By the format of x or y.
  struct Format {
    UnpackPanels unpack;
    UnpackRows rows;
    MultiplyDirect direct;
    MultiplyPanels panels;
    MultiplyFresh fresh;
  };

  Format dlfloat16, half, single;
  // total += partial; `count` is a multiple of 16.
  void (*add)(float* total, const float* partial, int64_t count);
  // Rows of 64 sums as sticks of DLFloat16, `stride` bytes apart. nullptr: as tile programs do it.
  void (*encode_dlfloat16)(std::byte* to, int64_t stride, const float* sums, int64_t rows);
};

const MatmulKernels& matmul_kernels(Simd simd);

namespace simd_avx512 {
extern const MatmulKernels kMatmulKernels;
}
namespace simd_avx2 {
extern const MatmulKernels kMatmulKernels;
}
namespace simd_portable {
extern const MatmulKernels kMatmulKernels;
}

}  // namespace spyre::card
