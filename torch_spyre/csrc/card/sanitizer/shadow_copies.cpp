// Copies between layouts on the shadows: element by element the first time, then stick by stick.
#include <algorithm>
#include <array>

#include "sanitizer/shadow_lanes.h"
#include "sanitizer/shadow_run.h"
#include "sanitizer/shadow_walk.h"

namespace spyre::card {
namespace {

// How many of `left` evenly spaced elements lie in the stick of the first one.
int64_t count_in_stick(int64_t at, int64_t step, int64_t left) {
  if (step <= 0 || step >= kStickBytes) return 1;
  const int64_t room = kStickBytes - (at & (kStickBytes - 1));
  return std::min(left, (room + step - 1) / step);
}

constexpr int64_t kRoom = 8;  // elements after a row of numbers

// The bits of an element, by its first byte.
std::array<Bits, kStickBytes> element_bits(int bytes) {
  std::array<Bits, kStickBytes> made;
  for (int i = 0; i < kStickBytes; i++) made[i] = Bits::range(i, bytes);
  return made;
}

}  // namespace

// A stick of the result is a sum over its elements: where each came from, times where it went. An
// element is one number, whose lowest bit says whether it holds data.
void ShadowRun::run_copy(const ShadowCopy& step) {
  constexpr int kSource = 0, kDestination = 1;
  const int64_t bytes = step.source.elem_bytes;
  // What is followed once has no use for sums.
  const std::vector<CoreSums>* sums = flow_ == Flow::PROGRAM ? step.sums->find(step) : nullptr;
  // First all sticks forget where they came from, then elements arrive.
  for (int core = 0; core < cores_; core++) {
    if (num_elements(step.destination.views[core]) == 0) continue;
    if (sums == nullptr) {
      forget_tags(step.destination, core);
    } else {
      for (const CoreSums::Target& target : (*sums)[core].targets) forget_tag(core, target.offset);
    }
  }
  std::vector<uint64_t> elements;
  for (int core = 0; core < cores_; core++) {
    const View& from = step.source.views[core];
    if (num_elements(from) == 0) continue;
    if (sums != nullptr && put_sums((*sums)[core], core)) continue;
    const Dims strides = numbering(from.sizes, kRoom);
    int64_t last_number = 0;
    for (size_t d = 0; d < strides.size(); d++) last_number += (from.sizes[d] - 1) * strides[d];
    elements.resize(last_number + 1);
    int64_t last = -1;
    Bits data;
    uint64_t tag = 0;
    const auto take = [&](const ElementRun& run) {
      int64_t at = run.device * bytes;
      uint64_t* element = elements.data() + run.number;
      const int64_t step = run.device_step * bytes;
      for (int64_t i = 0; i < run.count;) {
        const int64_t stick = at & -kStickBytes;
        if (stick != last) read_stick(kSource, core, stick, data, tag);
        last = stick;
        const int64_t end = i + count_in_stick(at, step, run.count - i);
        const bool all = data.all();
        for (; i < end; i++) {
          const int byte = static_cast<int>(at - stick);
          const bool is_data = all || data.covers(Bits::range(byte, static_cast<int>(bytes)));
          *element = (tag + byte * kNextStick) << 1 | is_data;
          at += step;
          element += run.step;
        }
      }
    };
    for_each_run(step.source.map, from, bytes, Replicas::FIRST_ONLY, strides, take);
    put_elements(step.destination, core, elements, kDestination);
  }
}

// False, with nothing written, when there is padding among the elements: they go one by one then.
bool ShadowRun::put_sums(const CoreSums& sums, int core) {
  constexpr int kSource = 0, kDestination = 1;
  std::vector<uint64_t> tags(sums.sources.size());
  for (size_t i = 0; i < tags.size(); i++) {
    Bits data;
    read_stick(kSource, core, sums.sources[i].offset, data, tags[i]);
    if (!data.covers(sums.sources[i].needed)) return false;
  }
  std::vector<uint64_t> values(sums.ends.size());
  uint32_t part = 0;
  for (size_t i = 0; i < values.size(); i++) {
    for (; part < sums.ends[i]; part++) {
      values[i] += tags[sums.parts[part].source] * sums.parts[part].factor;
    }
  }
  for (const CoreSums::Target& target : sums.targets) {
    add_to_stick(kDestination, core, target.offset, values[target.sum] + target.constant,
                 target.written, {});
  }
  return true;
}

void ShadowRun::forget_tag(int core, int64_t offset) {
  constexpr int kDestination = 1;
  if (!is_inside(kDestination, core, offset, true)) return;
  const Where& place = where(kDestination, core);
  note_written(place, kDestination, core, place.base + offset);
  place.shadow->set_tag(flow_, (place.base + offset) / kStickBytes, launch_.number_, 0);
}

void ShadowRun::forget_tags(const ShadowCopy::Side& side, int core) {
  const int64_t bytes = side.elem_bytes;
  int64_t last = -1;
  const auto forget = [&](const ElementRun& run) {
    const int64_t step = run.device_step == 1 ? std::max<int64_t>(1, kStickBytes / bytes) : 1;
    for (int64_t i = 0;; i = std::min(i + step, run.count - 1)) {
      const int64_t at = (run.device + i * run.device_step) * bytes;
      const int64_t stick = at / kStickBytes * kStickBytes;
      if (stick != last) forget_tag(core, stick);
      last = stick;
      if (i == run.count - 1) return;
    }
  };
  for_each_run(side.map, side.views[core], bytes, Replicas::FILL_ALL,
               numbering(side.views[core].sizes), forget);
}

// Some elements have arrived in a stick: with data, and without.
void ShadowRun::add_to_stick(int number, int core, int64_t offset, uint64_t sum, const Bits& there,
                             const Bits& missing) {
  if (!is_inside(number, core, offset, true)) return;
  const Where& place = where(number, core);
  const size_t stick = (place.base + offset) / kStickBytes;
  const uint64_t tag = place.shadow->tag(flow_, stick, launch_.number_, 0);
  place.shadow->set_tag(flow_, stick, launch_.number_, tag + sum);
  if (flow_ == Flow::REFERENCE) return;
  StickState& state = place.shadow->state(stick);
  note_found(number, place.base + offset, state);
  if (state.run == run_ && state.core != core) {
    report("writes a stick that another core writes in the same step", number, core, offset);
  }
  state.run = run_;
  state.core = static_cast<uint16_t>(core);
  state.buffer = place.owner;
  state.data = state.data | there;
  state.data = {state.data.low & ~missing.low, state.data.high & ~missing.high};
}

void ShadowRun::put_elements(const ShadowCopy::Side& side, int core,
                             const std::vector<uint64_t>& elements, int number) {
  const int64_t bytes = side.elem_bytes;
  int64_t last = -1;
  uint64_t sum = 0;
  Bits there, missing;  // of the stick that elements go to
  const auto bits_of = element_bits(static_cast<int>(bytes));
  const auto finish_stick = [&] {
    if (last >= 0) add_to_stick(number, core, last, sum, there, missing);
  };
  const auto put = [&](const ElementRun& run) {
    int64_t at = run.device * bytes;
    const uint64_t* element = elements.data() + run.number;
    const int64_t step = run.device_step * bytes;
    for (int64_t i = 0; i < run.count;) {
      const int64_t stick = at & -kStickBytes;
      if (stick != last) {
        finish_stick();
        last = stick;
        sum = 0;
        there = missing = {};
      }
      const int64_t count = count_in_stick(at, step, run.count - i);
      const int first = static_cast<int>(at - stick);
      uint64_t part = 0, all = 1;
      for (int64_t k = 0; k < count; k++) {
        const uint64_t one = element[k * run.step];
        part += (one & ~uint64_t{1}) * kCopyFactors[first + k * step];
        all &= one;
      }
      sum += part;
      if (all && step == bytes) {  // the usual case: elements that follow each other, all data
        there = there | Bits::range(first, static_cast<int>(count * bytes));
      } else {
        for (int64_t k = 0; k < count; k++) {
          Bits& kind = element[k * run.step] & 1 ? there : missing;
          kind = kind | bits_of[first + k * step];
        }
      }
      i += count;
      at += count * step;
      element += count * run.step;
    }
  };
  const Dims strides = numbering(side.views[core].sizes, kRoom);
  for_each_run(side.map, side.views[core], bytes, Replicas::FILL_ALL, strides, put);
  finish_stick();
}

}  // namespace spyre::card
