#include "memory/address_map.h"

#include <algorithm>
#include <limits>

namespace spyre::card {
namespace {

bool is_widened(const StickLayout& layout) {
  // QFP8CH and EXX2 have no documented order inside the stick: they are taken in standard order.
  return layout.arrangement == ElementArrangement::DL16_TO_FP32 &&
         elems_per_stick(layout.format) == 32 && layout.stride_map.back() > 0;
}

// The axis whose stride is a whole stick. Rows of exactly one stick have that stride too: then the
// place that the default rule gives to the axis (before dim 0 of the order) decides.
int find_stick_axis(const StickLayout& layout) {
  const int last = static_cast<int>(layout.device_size.size()) - 1;
  const int64_t stride = layout.stride_map[last] * layout.device_size[last];
  if (last >= 2 && layout.stride_map[last - 2] == stride) return last - 2;
  for (int j = 0; j < last; ++j) {
    if (layout.stride_map[j] == stride) return j;
  }
  return -1;
}

// True when an axis other than `stick` walks along a logical dimension whose stride is no larger
// than a stick: the rows end before the second stick begins.
bool rows_end_inside_a_stick(const Placement& placement, int stick) {
  const StickLayout& layout = placement.layout;
  const int last = static_cast<int>(layout.device_size.size()) - 1;
  for (int j = 0; j < last; ++j) {
    const int64_t stride = layout.stride_map[j];
    if (j == stick || layout.device_size[j] == 1 || stride <= layout.stride_map[last] ||
        stride > layout.stride_map[stick]) {
      continue;
    }
    for (size_t d = 0; d < placement.sizes.size(); ++d) {
      if (placement.strides[d] == stride && placement.sizes[d] > 1) return true;
    }
  }
  return false;
}

// The order DL16_TO_FP32: 64 columns fill a pair of 32-element sticks in groups of four, even
// groups in the first stick. So column = pair*64 + group*8 + stick_in_pair*4 + elem, which is again
// a mixed radix; it replaces the levels of the stick and of the axis that counts sticks. A last
// stick without its partner has no place for the odd groups: such layouts are too small. Digits
// that begin past the end of a row would be mistaken for those of the rows: they are left out.
void add_widened_levels(Levels& levels, int64_t stride, const Level& sticks) {
  int64_t row_end = std::numeric_limits<int64_t>::max();
  for (const Level& level : levels) {
    if (level.stride > stride) row_end = std::min(row_end, level.stride);
  }
  const Level digits[] = {{stride, 4, 1},
                          {4 * stride, sticks.size >= 2 ? 2 : 1, sticks.device},
                          {8 * stride, 8, 4},
                          {64 * stride, sticks.size / 2, 2 * sticks.device}};
  for (const Level& digit : digits) {
    if (digit.size > 1 && digit.stride < row_end) levels.push_back(digit);
  }
}

}  // namespace

StickAxis stick_axis(const Placement& placement) {
  const StickLayout& layout = placement.layout;
  StickAxis axis;
  if (layout.stride_map.back() <= 0) return axis;
  axis.index = find_stick_axis(layout);
  axis.widened = is_widened(layout);
  axis.idle = !axis.widened && axis.index >= 0 && layout.device_size[axis.index] > 1 &&
              rows_end_inside_a_stick(placement, axis.index);
  return axis;
}

AddressMap make_address_map(const Placement& placement) {
  const StickLayout& layout = placement.layout;
  const int last = static_cast<int>(layout.device_size.size()) - 1;
  const StickAxis special = stick_axis(placement);
  AddressMap map;
  Level sticks = {0, 1, 0};  // the axis that counts the sticks of a widened layout
  int64_t device = 1;
  for (int j = last; j >= 0; --j) {
    const Level axis = {layout.stride_map[j], layout.device_size[j], device};
    device *= axis.size;
    if (axis.size == 1 || axis.stride < 0) continue;
    if (axis.stride == 0) {
      map.replicas.push_back({axis.size, axis.device});
    } else if (special.widened && j == special.index) {
      sticks = axis;
    } else if (!(special.widened && j == last) && !(special.idle && j == special.index)) {
      map.levels.push_back(axis);
    }
  }
  if (special.widened) add_widened_levels(map.levels, layout.stride_map[last], sticks);
  sort_by_stride(map.levels);
  join_levels(map.levels);
  map.dims = shape_levels(placement.sizes, placement.strides);
  map.placed = map.dims;
  join_levels(map.placed);
  return map;
}

AddressMap untiled_address_map() {
  AddressMap map;
  map.levels.push_back({1, std::numeric_limits<int64_t>::max(), 1});
  map.untiled = true;
  return map;
}

Levels shape_levels(const Dims& sizes, const Dims& strides) {
  Levels levels;
  for (size_t d = 0; d < sizes.size(); ++d) {
    // The device step is the stride again: joining then looks at the storage only.
    if (sizes[d] > 1 && strides[d] > 0) levels.push_back({strides[d], sizes[d], strides[d]});
  }
  sort_by_stride(levels);
  return levels;
}

Stepping stepping(const AddressMap& map, int64_t step) {
  if (step == 0) return {0, 0, 0};
  int level = map.levels.size() - 1;
  while (level >= 0 && map.levels[level].stride > step) --level;
  if (level < 0 || step % map.levels[level].stride != 0) return {step, -1, 0};
  return {step, level, step / map.levels[level].stride * map.levels[level].device};
}

Run run_at(const AddressMap& map, const Stepping& stepping, int64_t element, int64_t limit) {
  if (stepping.step == 0) return {limit, map.locate(element)};
  if (stepping.level < 0) return {1, map.locate(element)};
  int64_t device = 0;
  // Elements until any larger digit would change; strides need not divide each other, so the
  // nearest boundary can be that of any of them.
  int64_t room = std::numeric_limits<int64_t>::max();
  for (int k = map.levels.size() - 1; k >= 0; --k) {
    const Level& level = map.levels[k];
    if (element >= level.stride) {
      device += element / level.stride * level.device;
      element %= level.stride;
    }
    if (k > stepping.level) room = std::min(room, level.stride - element);
  }
  if (room <= (limit - 1) * stepping.step) limit = (room + stepping.step - 1) / stepping.step;
  return {limit, device};
}

}  // namespace spyre::card
