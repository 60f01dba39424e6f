// What is known about the numbers of an int64 tensor, which the card holds in 32 bits.
//
// Compiled kernels compute with 32-bit integers. The compiler proves that no result leaves them,
// from how large the numbers of a graph's inputs are. That is known of what the host has written:
// the limits are kept with the memory, so all storages over it share them. What a kernel has
// written is not known; it is measured when asked for, which waits for the card.
#pragma once

#include <ATen/core/Tensor.h>

#include "card/memory/dma.h"
#include "hooks/storage.h"

namespace spyre {

// How large the numbers of an int64 tensor's storage are. A graph is compiled for one for each of
// its inputs; a larger one than expected is compiled for again.
enum IntegerClass : int {
  TRUTH = 1,     // several numbers, all 0 or 1: a mask
  SMALL = 24,    // less than 2**24 either way: positions, tokens, sizes
  FITTING = 32,  // whatever the card can hold
  CARRIED = 64,  // on the host
};

IntegerClass integer_class(const at::Tensor& tensor);

// Elements of an int64 storage were written from host memory; call it when they fit.
void note_written(const SpyreStorageImpl& storage, const card::View& view,
                  const card::HostSide& host);
// ... or were copied from another one.
void note_copied(const SpyreStorageImpl& from, const SpyreStorageImpl& to, const card::View& view);
// ... or a kernel may have written them.
void forget_limits(const at::Tensor& tensor);

}  // namespace spyre
