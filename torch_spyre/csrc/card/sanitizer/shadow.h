// What the sanitizer knows of each stick of a memory: which bytes hold data, who wrote it last, and
// where its content came from in the launch that runs.
//
// One Shadow belongs to the device memory, one to the scratchpad of each core. Host pages are taken
// where something is noted; a stick of which nothing is noted has no data and no writer.
//
// Example: shadow.state(offset / kStickBytes).data.all() says that the whole stick holds data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "numerics/formats.h"

namespace spyre::card {

// 128 bits: the bytes of a stick, or the lanes of a group.
struct Bits {
  uint64_t low = 0, high = 0;

  static constexpr Bits full() { return {~uint64_t{0}, ~uint64_t{0}}; }
  // The bits first ... first + count - 1.
  static constexpr Bits range(int first, int count) {
    const auto half = [](int begin, int end) {
      if (begin < 0) begin = 0;
      if (end > 64) end = 64;
      if (begin >= end) return uint64_t{0};
      const uint64_t upto = end == 64 ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
      return upto & ~((uint64_t{1} << begin) - 1);
    };
    return {half(first, first + count), half(first - 64, first + count - 64)};
  }

  constexpr bool all() const { return (low & high) == ~uint64_t{0}; }
  constexpr bool none() const { return (low | high) == 0; }
  constexpr bool has(int bit) const { return (bit < 64 ? low >> bit : high >> (bit - 64)) & 1; }
  constexpr bool covers(const Bits& other) const {
    return (other.low & ~low) == 0 && (other.high & ~high) == 0;
  }
  constexpr int first_missing_of(const Bits& other) const {
    for (int bit = 0; bit < 128; bit++) {
      if (other.has(bit) && !has(bit)) return bit;
    }
    return -1;
  }
  constexpr Bits operator&(const Bits& o) const { return {low & o.low, high & o.high}; }
  constexpr Bits operator|(const Bits& o) const { return {low | o.low, high | o.high}; }
  constexpr bool operator==(const Bits&) const = default;
};

// Numbers of writers that are no run of a step.
enum SpecialRun : uint32_t { NOBODY = 0, BEFORE, FREED, FIRST_RUN };

constexpr int kNoCore = 0xffff;  // of a writer that is none

struct StickState {
  Bits data;              // bytes that hold data; others were never written, or are padding
  uint32_t run = NOBODY;  // who wrote last: a run of a step, a copy of the host
  uint16_t core = 0;      // of that run
  uint16_t buffer = 0;    // of the kernel, as which it was written; 0: not known

  constexpr bool operator==(const StickState&) const = default;
};

// Of a scratchpad that an intermediate has taken over in a launch: not written since.
constexpr StickState begun_stick(uint64_t launch, uint16_t buffer) {
  return {{}, NOBODY, static_cast<uint16_t>(launch), buffer};
}

// Where the content of a stick came from. Counts only in the launch that noted it; before that a
// stick is what it was when the launch began, which its place in its tensor names.
struct StickTag {
  uint64_t value = 0;
  uint64_t launch = 0;
};

// Whose tags: of the program that runs, or of the operations of the bundle, one by one.
enum class Flow : int8_t { PROGRAM = 0, REFERENCE = 1 };

class Shadow {
 public:
  explicit Shadow(size_t bytes);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  size_t bytes() const { return sticks_ * kStickBytes; }
  StickState& state(size_t stick) { return states_[stick]; }

  uint64_t tag(Flow flow, size_t stick, uint64_t launch, uint64_t initial) const {
    const StickTag& tag = tags_[static_cast<int>(flow)][stick];
    return tag.launch == launch ? tag.value : initial;
  }
  bool has_tag(Flow flow, size_t stick, uint64_t launch) const {
    return tags_[static_cast<int>(flow)][stick].launch == launch;
  }
  void set_tag(Flow flow, size_t stick, uint64_t launch, uint64_t value) {
    tags_[static_cast<int>(flow)][stick] = {value, launch};
  }

  // Sets the state of all sticks that a range of bytes touches.
  void fill(size_t first, size_t bytes, const StickState& state);
  void forget(size_t first, size_t bytes);  // they hold no data and have no writer
  void clear();

 private:
  size_t sticks_;
  StickState* states_ = nullptr;
  std::array<StickTag*, 2> tags_{};
};

// Mixes two numbers into one that looks random; the order counts.
constexpr uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15 + b + 0x7F4A7C159E3779B9;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93;
  return x ^ (x >> 32);
}

}  // namespace spyre::card
