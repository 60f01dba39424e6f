// tile/kernels.inl for x86 processors with AVX2, FMA and F16C; chosen at run time.
#if defined(__x86_64__) || defined(__i386__)

// Shared headers come before the target is set: their inline functions must stay runnable anywhere.
#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numerics/dlfloat16.h"
#include "tile/kernels.h"

#define SPYRE_SIMD_AVX2
#if defined(__clang__)
#pragma clang fp contract(off)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx2,fma,f16c")
#endif

#include "tile/kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
