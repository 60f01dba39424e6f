// tile/kernels.inl for every processor; tests compare it with the other forms.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numerics/dlfloat16.h"
#include "tile/kernels.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "tile/kernels.inl"
