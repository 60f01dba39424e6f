// tile/kernels.inl for x86 processors with AVX2, FMA and F16C; chosen at run time.
#if defined(__x86_64__) || defined(__i386__)

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numerics/dlfloat16.h"
#include "numerics/target.h"
#include "tile/kernels.h"

#define SPYRE_SIMD_AVX2
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif
SPYRE_TARGET_BEGIN(SPYRE_AVX2)

#include "tile/kernels.inl"

SPYRE_TARGET_END

#endif
