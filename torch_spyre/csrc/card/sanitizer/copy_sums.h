// A copy between layouts as sums over sticks.
//
// The tag of a stick that a copy writes is a sum over its elements: where each came from (the tag
// of its stick, and the byte), times a number for the byte that it went to. Which elements these
// are is the same in every run. So what is left of a run is one sum for each stick, over the sticks
// that it is made from, and of those that change lanes with others (64 rows that become 64 columns)
// all have the same sum but for a constant.
//
// Example: element 3 of source stick 5 goes to element 0: factor(0) * 2 * (tag(5) + kNextStick *
// 6).
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "sanitizer/shadow.h"

namespace spyre::card {

// Of one core. Offsets are bytes from where its operands begin.
struct CoreSums {
  struct Source {
    int64_t offset;
    Bits needed;  // bytes that are copied
  };
  struct Part {
    uint32_t source;
    uint64_t factor;
  };
  struct Target {
    int64_t offset;
    uint32_t sum;
    uint64_t constant;
    Bits written;
  };
  std::vector<Source> sources;
  std::vector<Part> parts;
  std::vector<uint32_t> ends;  // of each sum, in parts
  std::vector<Target> targets;
};

struct ShadowCopy;

// What an element is multiplied by in the tag of the stick that it goes to, by its first byte
// there.
inline constexpr std::array<uint64_t, kStickBytes> kCopyFactors = [] {
  std::array<uint64_t, kStickBytes> made{};
  for (size_t i = 0; i < made.size(); i++) made[i] = mix(i, 0xC0FFEE) | 1;
  return made;
}();

class CopySums {
 public:
  // The sums by core; null in the first run, which is often the only one: to find them takes longer
  // than to follow the elements.
  const std::vector<CoreSums>* find(const ShadowCopy& copy);

 private:
  std::mutex mutex_;
  int runs_ = 0;
  std::vector<CoreSums> sums_;
};

}  // namespace spyre::card
