// tile_kernels.inl for every processor; tests compare it with the other forms.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dlfloat16.h"
#include "tile_kernels.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "tile_kernels.inl"
