// convert.inl for every processor; tests compare it with the other forms bit for bit.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "convert.h"
#include "dlfloat16.h"
#include "simd.h"

#include "convert.inl"
