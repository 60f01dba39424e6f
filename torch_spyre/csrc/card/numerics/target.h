// For files that are compiled for one kind of x86 processor, chosen at run time: what stands
// between SPYRE_TARGET_BEGIN and SPYRE_TARGET_END may use its instructions. Shared headers come
// before: their inline functions must stay runnable anywhere.
#pragma once

// GCC 12 takes the undefined operands of its own intrinsics for a mistake (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#define SPYRE_AVX2 "avx2,fma,f16c"
#define SPYRE_AVX512 "avx512f,avx512bw,avx512vl,avx512dq"

#define SPYRE_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define SPYRE_TARGET_BEGIN(processor) \
  SPYRE_PRAGMA(clang attribute push(__attribute__((target(processor))), apply_to = function))
#define SPYRE_TARGET_END _Pragma("clang attribute pop")
#else
#define SPYRE_TARGET_BEGIN(processor) SPYRE_PRAGMA(GCC target(processor))
#define SPYRE_TARGET_END
#endif

#define SPYRE_INLINE [[gnu::always_inline]] inline
