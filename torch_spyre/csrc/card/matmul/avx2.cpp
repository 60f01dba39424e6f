// matmul/kernels.inl for x86 processors with AVX2, FMA and F16C; chosen at run time by
// matmul/matmul.cpp.
#if defined(__x86_64__) || defined(__i386__)

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "matmul/kernels.h"
#include "numerics/dlfloat16.h"
#include "numerics/target.h"

#define SPYRE_SIMD_AVX2
SPYRE_TARGET_BEGIN(SPYRE_AVX2)

#include "matmul/kernels.inl"

SPYRE_TARGET_END

#endif
