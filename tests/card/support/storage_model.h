// A slow model of tiled card memory that the DMA tests compare with, written from the documented
// meaning of a layout and from nothing else: it looks at every device position and asks which
// storage element, if any, lies there. The code under test goes the other way and by other means.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "memory/dma.h"

namespace model {

using namespace spyre::card;
using Random = std::mt19937_64;

inline int64_t pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// For each storage element its positions on the device, none for elements that are not placed.
// There are several with broadcast axes; the one with their indices 0 comes first.
using Places = std::vector<std::vector<int64_t>>;

// Which storage elements exist.
inline std::vector<bool> placed_elements(const Dims& sizes, const Dims& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  std::vector<bool> placed(last + 1, false);
  placed[0] = true;
  for (size_t d = 0; d < sizes.size(); ++d) {
    std::vector<bool> next(last + 1, false);
    for (int64_t e = 0; e <= last; ++e) {
      for (int64_t i = 0; placed[e] && i < sizes[d]; ++i) next[e + i * strides[d]] = true;
    }
    placed = next;
  }
  return placed;
}

// An axis that holds data. In widened layouts the two axes of the stick are one: `stick_count` then
// is the axis that counts sticks.
struct DataAxis {
  int64_t stride;
  int axis;
  bool widened = false;
  int stick_count = -1;

  int64_t contribution(const Dims& index) const {
    if (!widened) return index[axis] * stride;
    const int64_t stick = stick_count < 0 ? 0 : index[stick_count];
    const int64_t group = index[axis] / 4, elem = index[axis] % 4;
    return (stick / 2 * 64 + group * 8 + stick % 2 * 4 + elem) * stride;
  }
};

inline std::vector<DataAxis> data_axes(const StickLayout& layout) {
  std::vector<DataAxis> axes;
  const int last = static_cast<int>(layout.device_size.size()) - 1;
  const int64_t along = layout.stride_map[last];
  DataAxis stick = {along, last};
  stick.widened = layout.arrangement == ElementArrangement::DL16_TO_FP32 &&
                  layout.device_size[last] == 32 && along > 0;
  for (int j = 0; j < last; ++j) {
    const int64_t stride = layout.stride_map[j];
    if (stride <= 0 || layout.device_size[j] == 1) continue;
    if (stick.widened && stride == 32 * along) {
      stick.stick_count = j;
    } else {
      axes.push_back({stride, j});
    }
  }
  if (along > 0) axes.push_back(stick);
  std::sort(axes.begin(), axes.end(),
            [](const DataAxis& a, const DataAxis& b) { return a.stride < b.stride; });
  return axes;
}

inline Places find_places(const Placement& placement) {
  const StickLayout& layout = placement.layout;
  const std::vector<bool> placed = placed_elements(placement.sizes, placement.strides);
  const std::vector<DataAxis> axes = data_axes(layout);
  Places places(placed.size());
  Dims index(layout.device_size.size(), 0);
  for (int64_t position = 0; position < layout.num_elements(); ++position) {
    int64_t rest = position;
    bool synthetic = false;
    for (size_t j = index.size(); j-- > 0;) {
      index[j] = rest % layout.device_size[j];
      rest /= layout.device_size[j];
      synthetic |= layout.stride_map[j] == -1 && index[j] > 0;
    }
    if (synthetic) continue;
    // An index past the point where the next larger axis counts on is padding.
    int64_t element = 0;
    bool padding = false;
    for (const DataAxis& axis : axes) {
      padding |= element >= axis.stride;
      element += axis.contribution(index);
    }
    if (!padding && element < static_cast<int64_t>(placed.size()) && placed[element]) {
      places[element].push_back(position);
    }
  }
  return places;
}

inline int64_t count_placed(const Places& places) {
  return std::count_if(places.begin(), places.end(), [](const auto& at) { return !at.empty(); });
}

template <class Visit>
void for_each_index(const Dims& sizes, Visit&& visit) {
  Dims index(sizes.size(), 0);
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  for (int64_t i = 0; i < count; ++i) {
    visit(index);
    for (size_t d = sizes.size(); d-- > 0;) {
      if (++index[d] < sizes[d]) break;
      index[d] = 0;
    }
  }
}

inline int64_t dot(const Dims& index, const Dims& strides) {
  int64_t sum = 0;
  for (size_t d = 0; d < index.size(); ++d) sum += index[d] * strides[d];
  return sum;
}

// Memory of known random content with a guard on both sides, aligned like card memory.
class Buffer {
 public:
  Buffer(int64_t bytes, Random& random) : size_(bytes), memory_(bytes + 2 * kGuard + 128) {
    for (size_t i = 0; i + 8 <= memory_.size(); i += 8) {
      const uint64_t bits = random();
      std::memcpy(memory_.data() + i, &bits, 8);
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = (address + kGuard + 127) / 128 * 128 - address;
  }
  Buffer(const Buffer& other) : size_(other.size_), memory_(other.memory_.size()) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = (address + kGuard + 127) / 128 * 128 - address;
    std::memcpy(memory_.data() + data_ - kGuard, other.memory_.data() + other.data_ - kGuard,
                size_ + 2 * kGuard);
  }
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() { return memory_.data() + data_; }
  const std::byte* data() const { return memory_.data() + data_; }
  bool operator==(const Buffer& other) const {
    return size_ == other.size_ &&
           std::memcmp(data() - kGuard, other.data() - kGuard, size_ + 2 * kGuard) == 0;
  }

 private:
  static constexpr int64_t kGuard = 256;
  int64_t size_;
  std::vector<std::byte> memory_;
  int64_t data_;
};

// --------------------------------------------------------------------------- random test cases

inline Dims permuted(const Dims& dims, const std::vector<size_t>& order) {
  Dims result;
  for (size_t d : order) result.push_back(dims[d]);
  return result;
}

inline std::vector<size_t> random_order(size_t rank, Random& random) {
  std::vector<size_t> order(rank);
  for (size_t d = 0; d < rank; ++d) order[d] = d;
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// Looking at all positions of a large device array takes long and shows nothing more.
inline bool is_small(const Placement& placement) {
  return placement.layout.num_elements() <= 100'000;
}

// Strides that count the dimensions in a random order; with `gaps`, rows do not touch.
inline Dims random_strides(const Dims& sizes, bool permute, bool gaps, Random& random) {
  std::vector<size_t> order = random_order(sizes.size(), random);
  if (!permute) std::sort(order.rbegin(), order.rend());
  Dims strides(sizes.size());
  int64_t stride = gaps ? pick(random, 1, 2) : 1;
  for (size_t d : order) {
    strides[d] = stride;
    stride = stride * sizes[d] + (gaps ? pick(random, 0, 9) : 0);
  }
  return strides;
}

inline void insert_axis(StickLayout& layout, int64_t size, int64_t stride, Random& random) {
  const int64_t at = pick(random, 0, static_cast<int64_t>(layout.device_size.size()) - 1);
  layout.device_size.insert(layout.device_size.begin() + at, size);
  layout.stride_map.insert(layout.stride_map.begin() + at, stride);
}

// Variations that keep the meaning: axes of size one, broadcast axes, a split axis, an axis that is
// longer than needed, another order.
inline void vary(StickLayout& layout, Random& random) {
  if (pick(random, 0, 3) == 0) insert_axis(layout, 1, pick(random, -1, 99), random);
  if (pick(random, 0, 3) == 0) insert_axis(layout, pick(random, 2, 3), 0, random);
  if (pick(random, 0, 5) == 0) insert_axis(layout, 2, -1, random);
  const size_t outer = layout.device_size.size() - 1;
  const size_t j = pick(random, 0, static_cast<int64_t>(outer) - 1);
  int64_t &size = layout.device_size[j], stride = layout.stride_map[j];
  if (pick(random, 0, 2) == 0 && size > 3 && stride > 0) {
    const int64_t inner = pick(random, 2, size - 1), total = size;
    size = inner;
    insert_axis(layout, (total + inner - 1) / inner, stride * inner, random);
  }
  const auto top = std::max_element(layout.stride_map.begin(), layout.stride_map.end() - 1);
  if (pick(random, 0, 3) == 0 && *top > 0 && *top > layout.stride_map.back()) {
    int64_t& longest = layout.device_size[top - layout.stride_map.begin()];
    if (longest > 1) longest += pick(random, 1, 3);
  }
  if (pick(random, 0, 1) == 0) {
    const auto order = random_order(layout.device_size.size() - 1, random);
    const int64_t stick = layout.device_size.back(), along = layout.stride_map.back();
    layout.device_size = permuted(layout.device_size, order);
    layout.stride_map = permuted(layout.stride_map, order);
    layout.device_size.push_back(stick);
    layout.stride_map.push_back(along);
  }
}

inline Dims random_sizes(Random& random, int64_t most_elements) {
  Dims sizes;
  const int64_t rank = pick(random, 0, 4);
  int64_t left = most_elements;
  for (int64_t d = 0; d < rank; ++d) {
    const int64_t size = std::min(pick(random, 1, d % 2 ? 12 : 150), left);
    sizes.push_back(size);
    left /= size;
  }
  std::shuffle(sizes.begin(), sizes.end(), random);
  return sizes;
}

inline Placement random_placement(const Dims& sizes, DataFormat format, Random& random) {
  const Dims strides =
      random_strides(sizes, pick(random, 0, 2) == 0, pick(random, 0, 3) == 0, random);
  Dims order;
  for (size_t d : random_order(sizes.size(), random)) order.push_back(static_cast<int64_t>(d));
  if (pick(random, 0, 1) == 0) std::sort(order.begin(), order.end());
  if (!sizes.empty() && pick(random, 0, 15) == 0) order.push_back(-1);
  StickLayout layout = make_layout(sizes, strides, format, order);
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  const Dims dense = random_strides(sizes, false, false, random);
  if (strides == dense && count > 1 && pick(random, 0, 6) == 0) {
    const int64_t elems = elems_per_stick(format);  // folded
    layout.device_size = {(count + elems - 1) / elems, elems};
    layout.stride_map = {elems, 1};
  }
  vary(layout, random);
  return {layout, sizes, strides};
}

enum class ViewUse { WRITE, READ };  // reading may use an element more than once

inline View full_view(const Placement& placement) {
  return {placement.sizes, placement.strides, 0};
}

// Reshapes a dense storage: all its elements in one dimension, split anew.
inline View reshaped(const Placement& placement, Random& random) {
  const auto placed = placed_elements(placement.sizes, placement.strides);
  const int64_t count = static_cast<int64_t>(placed.size());
  if (std::count(placed.begin(), placed.end(), true) != count) return full_view(placement);
  View view = {{count}, {1}, 0};
  for (int i = 0; i < 2; ++i) {
    const int64_t inner = pick(random, 1, 20);
    if (view.sizes.back() % inner != 0) continue;
    view.sizes.back() /= inner;
    view.strides.back() *= inner;
    view.sizes.push_back(inner);
    view.strides.push_back(1);
  }
  return view;
}

inline void slice(View& view, Random& random) {
  const size_t d = pick(random, 0, static_cast<int64_t>(view.sizes.size()) - 1);
  const int64_t begin = pick(random, 0, view.sizes[d] - 1);
  const int64_t step = pick(random, 0, 2) ? 1 : pick(random, 1, 5);
  const int64_t most = (view.sizes[d] - begin + step - 1) / step;
  view.offset += begin * view.strides[d];
  view.sizes[d] = pick(random, 0, 1) ? most : pick(random, 1, most);
  view.strides[d] *= step;
}

// Overlapping windows along one dimension, as unfold makes.
inline void unfold(View& view, Random& random) {
  const size_t d = pick(random, 0, static_cast<int64_t>(view.sizes.size()) - 1);
  const int64_t window = pick(random, 1, std::min<int64_t>(view.sizes[d], 5));
  view.sizes[d] -= window - 1;
  view.sizes.push_back(window);
  view.strides.push_back(view.strides[d]);
}

inline void diagonal(View& view) {
  if (view.sizes.size() < 2) return;
  view.sizes[1] = std::min(view.sizes[0], view.sizes[1]);
  view.strides[1] += view.strides[0];
  view.sizes.erase(view.sizes.begin());
  view.strides.erase(view.strides.begin());
}

inline View random_view(const Placement& placement, ViewUse use, Random& random) {
  View view = pick(random, 0, 3) ? full_view(placement) : reshaped(placement, random);
  while (!view.sizes.empty() && pick(random, 0, 2) != 0) {
    switch (pick(random, 0, 5)) {
      case 0:
      case 1:
      case 2:
        slice(view, random);
        break;
      case 3: {
        const auto order = random_order(view.sizes.size(), random);
        view = {permuted(view.sizes, order), permuted(view.strides, order), view.offset};
        break;
      }
      case 4:
        if (pick(random, 0, 3) == 0) diagonal(view);
        break;
      case 5:
        if (use == ViewUse::READ && view.sizes.size() < 5) {
          if (pick(random, 0, 1)) {
            view.sizes.insert(view.sizes.begin(), pick(random, 1, 3));
            view.strides.insert(view.strides.begin(), 0);
          } else {
            unfold(view, random);
          }
        }
        break;
    }
  }
  return view;
}

}  // namespace model
