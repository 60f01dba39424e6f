#include "memory/layout.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "memory/address_map.h"

namespace spyre::card {

std::string text(const Dims& dims) {
  std::string result = "[";
  for (size_t i = 0; i < dims.size(); ++i) result += (i ? ", " : "") + std::to_string(dims[i]);
  return result + "]";
}

namespace {

constexpr int kMaxRank = 6;
constexpr int64_t kSynthetic = -1;  // in dim orders and maps: no host dimension

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

int64_t product(const Dims& dims) {
  int64_t result = 1;
  for (int64_t size : dims) result *= size;
  return result;
}

bool names_each_dim_once(const Dims& dim_order, size_t rank) {
  if (dim_order.size() != rank &&
      !(dim_order.size() == rank + 1 && dim_order.back() == kSynthetic)) {
    return false;
  }
  Dims sorted(dim_order.begin(), dim_order.begin() + rank);
  std::sort(sorted.begin(), sorted.end());
  for (size_t d = 0; d < rank; ++d) {
    if (sorted[d] != static_cast<int64_t>(d)) return false;
  }
  return true;
}

// The host dimension of each device axis: dim 0 of the order just outside the stick, the others
// outermost, the last one twice (sticks, and elements of a stick).
Dims make_dim_map(const Dims& dim_order) {
  if (dim_order.size() == 1) return {dim_order[0], dim_order[0]};
  Dims map(dim_order.begin() + 1, dim_order.end());
  map.push_back(dim_order.front());
  map.push_back(dim_order.back());
  return map;
}

int64_t device_size_of(int64_t dim, int64_t stick_dim, const Dims& host_size, int64_t elems) {
  if (dim != stick_dim) return host_size[dim];
  if (stick_dim == kSynthetic) return 1;
  return (host_size[dim] + elems - 1) / elems;
}

// A dimension that several axes share is walked from the innermost axis out.
Dims make_stride_map(const Dims& dim_map, const Dims& device_size, const Dims& host_size,
                     const Dims& host_strides) {
  Dims next = host_strides;
  Dims stride_map(dim_map.size(), -1);
  for (size_t j = dim_map.size(); j-- > 0;) {
    const int64_t dim = dim_map[j];
    if (dim == kSynthetic || host_size[dim] == 1) continue;
    stride_map[j] = next[dim];
    next[dim] *= device_size[j];
  }
  return stride_map;
}

void check_axes(const StickLayout& layout) {
  const Dims& sizes = layout.device_size;
  if (sizes.size() != layout.stride_map.size()) {
    refuse("device_size " + text(sizes) + " and stride_map " + text(layout.stride_map) +
           " differ in length: give one stride for each device axis");
  }
  const int64_t elems = elems_per_stick(layout.format);
  if (elems == 0) {
    refuse(std::string("DataFormats.") + name(layout.format) + " has no tensor form");
  }
  if (sizes.empty() || sizes.back() != elems) {
    refuse("the last axis of device_size " + text(sizes) +
           " must be one stick: " + std::to_string(elems) + " elements of " + name(layout.format));
  }
  for (int64_t stride : layout.stride_map) {
    if (stride < -1) {
      refuse("stride_map " + text(layout.stride_map) + " has " + std::to_string(stride) +
             ": allowed are positive strides, 0 (broadcast) and -1 (synthetic)");
    }
  }
  if (sizes.size() > kMaxCopyDims) {
    refuse("device_size has " + std::to_string(sizes.size()) + " axes: at most " +
           std::to_string(kMaxCopyDims) + " are supported");
  }
}

void check_device_sizes(const Placement& placement) {
  // An empty tensor has an empty device array too; nothing is ever placed in it.
  const int64_t least = product(placement.sizes) == 0 ? 0 : 1;
  for (int64_t size : placement.layout.device_size) {
    if (size < least) {
      refuse("device_size " + text(placement.layout.device_size) +
             " has an axis that is not positive");
    }
  }
}

void check_distinct_strides(const Placement& placement) {
  if (product(placement.sizes) == 0) return;  // no element has a place, whatever the strides
  const StickLayout& layout = placement.layout;
  // An idle or widened stick axis does not count rows, whatever its stride.
  const StickAxis special = stick_axis(placement);
  const int ignored = special.idle || special.widened ? special.index : -1;
  Dims strides;
  for (size_t j = 0; j < layout.device_size.size(); ++j) {
    if (layout.device_size[j] > 1 && layout.stride_map[j] > 0 && static_cast<int>(j) != ignored) {
      strides.push_back(layout.stride_map[j]);
    }
  }
  std::sort(strides.begin(), strides.end());
  const auto twice = std::adjacent_find(strides.begin(), strides.end());
  if (twice != strides.end()) {
    refuse("two axes of device_size " + text(layout.device_size) + " have the same stride " +
           std::to_string(*twice) + " in stride_map " + text(layout.stride_map) +
           ": an element would have two places (a broadcast axis has stride 0)");
  }
}

void check_shape(const Placement& placement) {
  const Dims &sizes = placement.sizes, &strides = placement.strides;
  if (sizes.size() != strides.size()) {
    refuse("sizes " + text(sizes) + " and strides " + text(strides) + " differ in length");
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 0 || strides[d] < 0) {
      refuse("sizes " + text(sizes) + " and strides " + text(strides) + " must not be negative");
    }
  }
  int64_t extent = 0;
  for (const Level& dim : shape_levels(sizes, strides)) {
    if (extent >= dim.stride) {
      refuse("sizes " + text(sizes) + " with strides " + text(strides) +
             " overlap or interleave: each dimension must step over the smaller ones");
    }
    extent += (dim.size - 1) * dim.stride;
  }
}

void check_capacity(const Placement& placement) {
  const AddressMap map = make_address_map(placement);
  Progressions elements;
  for (const Level& dim : map.placed) {
    elements.push_back({0, dim.stride, (dim.size - 1) * dim.stride});
  }
  if (!all_inside(elements, map.levels)) {
    refuse("layout " + placement.layout.repr() + " is too small for sizes " +
           text(placement.sizes) + " with strides " + text(placement.strides) +
           ": some elements have no place on the device");
  }
}

}  // namespace

int64_t StickLayout::bytes() const {
  int64_t sticks = 1;
  for (size_t j = 0; j + 1 < device_size.size(); ++j) sticks *= device_size[j];
  return kStickBytes * sticks;
}

int64_t StickLayout::num_elements() const { return product(device_size); }

std::string StickLayout::repr() const {
  // The blank before "=" is part of the documented text.
  std::string result = "SpyreTensorLayout(device_size=" + text(device_size) +
                       ", stride_map =" + text(stride_map) + ", device_dtype=DataFormats." +
                       name(format);
  if (arrangement != ElementArrangement::STANDARD) {
    result += std::string(", element_arrangement=ElementArrangement.") + name(arrangement);
  }
  return result + ")";
}

StickLayout make_layout(const Dims& host_size, const Dims& host_strides, DataFormat format,
                        const Dims& dim_order, ElementArrangement arrangement) {
  const int64_t elems = elems_per_stick(format);
  if (elems == 0) refuse(std::string("DataFormats.") + name(format) + " has no tensor form");
  if (host_size.size() != host_strides.size()) {
    refuse("host_size " + text(host_size) + " and host_strides " + text(host_strides) +
           " differ in length");
  }
  if (host_size.empty() && dim_order.empty()) return {{1, elems}, {-1, -1}, format, arrangement};
  if (dim_order.empty() || dim_order.size() > kMaxRank) {
    refuse("Unsupported tensor rank: " + std::to_string(dim_order.size()));
  }
  if (!names_each_dim_once(dim_order, host_size.size())) {
    refuse("Incompatible host_size and dim_order: " + text(host_size) + " and " + text(dim_order));
  }
  const Dims dim_map = make_dim_map(dim_order);
  StickLayout layout{{}, {}, format, arrangement};
  for (size_t j = 0; j + 1 < dim_map.size(); ++j) {
    layout.device_size.push_back(device_size_of(dim_map[j], dim_map.back(), host_size, elems));
  }
  layout.device_size.push_back(elems);
  layout.stride_map = make_stride_map(dim_map, layout.device_size, host_size, host_strides);
  return layout;
}

StickLayout make_layout(const Dims& host_size, DataFormat format, const Dims& dim_order,
                        ElementArrangement arrangement) {
  Dims strides(host_size.size());
  int64_t stride = 1;
  for (size_t d = host_size.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(host_size[d], 1);
  }
  return make_layout(host_size, strides, format, dim_order, arrangement);
}

StickLayout make_layout(const Dims& host_size, DataFormat format) {
  Dims order(host_size.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  return make_layout(host_size, format, order);
}

void check_layout(const StickLayout& layout) { check_axes(layout); }

void check_placement(const Placement& placement) {
  check_axes(placement.layout);
  check_shape(placement);
  check_device_sizes(placement);
  check_distinct_strides(placement);
  if (product(placement.sizes) != 0) check_capacity(placement);
}

}  // namespace spyre::card
