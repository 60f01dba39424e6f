// matmul/kernels.inl for x86 processors with AVX2, FMA and F16C; chosen at run time by
// matmul/matmul.cpp.
#if defined(__x86_64__) || defined(__i386__)

// Shared headers come before the target is set: their inline functions must stay runnable anywhere.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "matmul/kernels.h"
#include "numerics/dlfloat16.h"

#define SPYRE_SIMD_AVX2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "matmul/kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
