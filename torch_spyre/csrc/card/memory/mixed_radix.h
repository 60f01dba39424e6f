// Numbers written over a list of strides, as a storage offset is over the axes of a tensor.
//
// Given levels of rising strides, an element e has one digit per level: from the largest stride
// down, digit = e / stride, and the rest goes on. The strides need not divide each other.
// Example: over the strides 1, 64, 240 the element 250 is (10, 0, 1).
//
// Questions about sets of elements are answered from bounds, without visiting the elements: a set
// is the sums of one member of each of some progressions (a view is such a set).
#pragma once

#include <cstdint>
#include <span>

#include "memory/inline_vector.h"

namespace spyre::card {

// Non-trivial dimensions that one copy can have. PyTorch allows 64, but 32 dimensions of size 2
// would already be 2^32 elements.
constexpr int kMaxCopyDims = 32;

struct Level {
  int64_t stride;  // in storage elements, positive
  int64_t size;    // digits are below it
  int64_t device;  // device elements per digit
};
using Levels = InlineVector<Level, kMaxCopyDims>;

// first, first + step, ..., last; step is at least 1.
struct Progression {
  int64_t first, step, last;
};
using Progressions = InlineVector<Progression, kMaxCopyDims + 1>;

void sort_by_stride(Levels& levels);
// Joins neighbours that count on without a gap, in storage and on the device. Digits over the
// joined levels mean the same places.
void join_levels(Levels& levels);

// True when adding members of the progressions never carries from one level to the next, so that
// the digits of a sum are the sums of the digits. May be false for sets where it would be true.
bool carry_free(const Progressions& terms, const Levels& levels);

// True when all digits of all sums are below the sizes of their levels and nothing is left over.
// Exact; visits the elements only when bounds do not decide.
bool all_inside(const Progressions& terms, const Levels& levels);

}  // namespace spyre::card
