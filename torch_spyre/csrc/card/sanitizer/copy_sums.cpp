#include "sanitizer/copy_sums.h"

#include <unordered_map>
#include <utility>

#include "sanitizer/shadow_lanes.h"
#include "sanitizer/shadow_program.h"
#include "sanitizer/shadow_walk.h"

namespace spyre::card {
namespace {

// Numbers for sticks, in the order in which they are met. Neighbours are mostly the same stick.
class Numbers {
 public:
  // The number of a stick, and whether it is new.
  std::pair<uint32_t, bool> of(int64_t stick) {
    if (stick == last_) return {number_, false};
    const auto [entry, is_new] = known_.try_emplace(stick, static_cast<uint32_t>(known_.size()));
    last_ = stick;
    number_ = entry->second;
    return {number_, is_new};
  }

 private:
  std::unordered_map<int64_t, uint32_t> known_;
  int64_t last_ = -1;
  uint32_t number_ = 0;
};

struct Element {
  uint32_t source;
  uint32_t byte;
};

// Where the elements of a view lie, by their numbers.
std::vector<Element> find_elements(const ShadowCopy::Side& side, int core, const Dims& strides,
                                   CoreSums& sums) {
  const View& view = side.views[core];
  const int64_t bytes = side.elem_bytes;
  int64_t last = 0;
  for (size_t d = 0; d < strides.size(); d++) last += (view.sizes[d] - 1) * strides[d];
  std::vector<Element> elements(last + 1);
  Numbers numbers;
  for_each_run(side.map, view, bytes, Replicas::FIRST_ONLY, strides, [&](const ElementRun& run) {
    for (int64_t i = 0; i < run.count; i++) {
      const int64_t at = (run.device + i * run.device_step) * bytes;
      const int64_t stick = at & -kStickBytes;
      const auto [number, is_new] = numbers.of(stick);
      if (is_new) sums.sources.push_back({stick, {}});
      const int byte = static_cast<int>(at - stick);
      Bits& needed = sums.sources[number].needed;
      needed = needed | Bits::range(byte, static_cast<int>(bytes));
      elements[run.number + i * run.step] = {number, static_cast<uint32_t>(byte)};
    }
  });
  return elements;
}

uint64_t hash_of(const std::vector<CoreSums::Part>& parts) {
  uint64_t hash = parts.size();
  for (const CoreSums::Part& part : parts) hash = mix(hash, mix(part.source, part.factor));
  return hash;
}

CoreSums find_sums(const ShadowCopy& copy, int core) {
  CoreSums sums;
  const View& view = copy.destination.views[core];
  if (num_elements(view) == 0) return sums;
  const Dims strides = numbering(view.sizes);
  const std::vector<Element> elements = find_elements(copy.source, core, strides, sums);
  const int64_t bytes = copy.destination.elem_bytes;
  std::vector<std::vector<CoreSums::Part>> parts;
  Numbers numbers;
  for_each_run(copy.destination.map, view, bytes, Replicas::FILL_ALL, strides,
               [&](const ElementRun& run) {
                 for (int64_t i = 0; i < run.count; i++) {
                   const int64_t at = (run.device + i * run.device_step) * bytes;
                   const int64_t stick = at & -kStickBytes;
                   const auto [number, is_new] = numbers.of(stick);
                   if (is_new) {
                     sums.targets.push_back({stick, 0, 0, {}});
                     parts.emplace_back();
                   }
                   const Element element = elements[run.number + i * run.step];
                   const int byte = static_cast<int>(at - stick);
                   const uint64_t factor = 2 * kCopyFactors[byte];
                   CoreSums::Target& target = sums.targets[number];
                   target.constant += factor * element.byte * kNextStick;
                   target.written = target.written | Bits::range(byte, static_cast<int>(bytes));
                   std::vector<CoreSums::Part>& mine = parts[number];
                   if (!mine.empty() && mine.back().source == element.source) {
                     mine.back().factor += factor;
                   } else {
                     mine.push_back({element.source, factor});
                   }
                 }
               });
  // Those that have the same parts share a sum: what they were made from counts, not a guess by
  // their hashes, so equal hashes must be equal parts.
  std::unordered_map<uint64_t, uint32_t> known;
  for (size_t i = 0; i < parts.size(); i++) {
    const auto next = static_cast<uint32_t>(sums.ends.size());
    const auto [entry, is_new] = known.try_emplace(hash_of(parts[i]), next);
    bool is_same = !is_new;
    if (is_same) {
      const uint32_t begin = entry->second == 0 ? 0 : sums.ends[entry->second - 1];
      is_same = sums.ends[entry->second] - begin == parts[i].size();
      for (size_t k = 0; is_same && k < parts[i].size(); k++) {
        const CoreSums::Part& other = sums.parts[begin + k];
        is_same = other.source == parts[i][k].source && other.factor == parts[i][k].factor;
      }
    }
    sums.targets[i].sum = is_same ? entry->second : next;
    if (is_same) continue;
    sums.parts.insert(sums.parts.end(), parts[i].begin(), parts[i].end());
    sums.ends.push_back(static_cast<uint32_t>(sums.parts.size()));
  }
  return sums;
}

}  // namespace

const std::vector<CoreSums>* CopySums::find(const ShadowCopy& copy) {
  const std::lock_guard lock(mutex_);
  if (runs_++ == 0) return nullptr;
  if (sums_.empty()) {
    for (size_t core = 0; core < copy.destination.views.size(); core++) {
      sums_.push_back(find_sums(copy, static_cast<int>(core)));
    }
  }
  return &sums_;
}

}  // namespace spyre::card
