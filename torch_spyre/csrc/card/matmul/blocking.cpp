#include "matmul/blocking.h"

#include <sys/mman.h>

namespace spyre::card {
namespace {

// Panels of several megabytes that all strips walk through are more small pages than a processor
// remembers. A wish that the system may ignore.
void advise_large_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr size_t kLargePage = 2 << 20;
  if (bytes >= 2 * kLargePage) (void)::madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace

void Scratch::grow(int64_t floats) {
  data_.reset();  // before the next: never both
  size_ = 0;
  const size_t bytes = floats * sizeof(float);
  data_.reset(static_cast<float*>(::operator new(bytes, kAlignment)));
  size_ = floats;
  advise_large_pages(data_.get(), bytes);
}

}  // namespace spyre::card
