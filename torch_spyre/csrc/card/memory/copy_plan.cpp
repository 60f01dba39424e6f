#include "memory/copy_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace spyre::card {
namespace {

// Large enough to pay for the way there, small enough to share among threads and to stay in L1.
constexpr int64_t kRowsBlockCols = 16384;
constexpr int64_t kRowsBlockRows = 16;
constexpr int64_t kRowsBlockElements = 8192;
// Long in the direction in which both sides go on: host rows, and sticks on the card.
constexpr int64_t kTransposeBlockRows = 512;
constexpr int64_t kTransposeBlockCols = 256;
constexpr int64_t kStridedBlockRows = 64;
constexpr int64_t kStridedBlockCols = 1024;
constexpr int64_t kFewRows = 8;  // a row axis shorter than this makes small boxes

Progression progression_of(const Axis& axis) {
  const int64_t step = axis.stepping.step;
  return {axis.start, std::max<int64_t>(step, 1), axis.start + (axis.size - 1) * step};
}

// ------------------------------------------------------------------------- 1. axes of the view

// By falling step, so that axes which count on from each other are neighbours.
bool comes_before(const Axis& a, const Axis& b) {
  if (a.stepping.step != b.stepping.step) return a.stepping.step > b.stepping.step;
  return a.host > b.host;
}

Axes view_axes(const View& view, const Dims& strides) {
  Axes axes;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] == 1) continue;
    const Axis axis = {view.sizes[d], strides[d], 0, {view.strides[d], 0, 0}};
    int at = axes.size();
    while (at > 0 && comes_before(axis, axes[at - 1])) --at;
    axes.insert(at, axis);
  }
  return axes;
}

void merge_axes(Axes& axes) {
  for (int a = axes.size() - 2; a >= 0; --a) {
    const Axis& slow = axes[a];
    Axis& fast = axes[a + 1];
    if (slow.stepping.step == fast.stepping.step * fast.size &&
        slow.host == fast.host * fast.size) {
      fast.size *= slow.size;
      axes.erase(a);
    }
  }
}

bool is_row_boundary(const AddressMap& map, int64_t stride) {
  return std::any_of(map.dims.begin(), map.dims.end(),
                     [&](const Level& dim) { return dim.stride == stride; });
}

// Cuts axes at the strides of the logical dimensions that the device keeps apart, where that leaves
// no remainder. Not inside a dimension: its sticks are found as runs, in the order of the host.
void split_axes(Axes& axes, const AddressMap& map, int64_t offset) {
  for (int k = map.levels.size() - 1; k > 0; --k) {
    const int64_t stride = map.levels[k].stride;
    if (!is_row_boundary(map, stride)) continue;
    for (int a = 0; a < axes.size(); ++a) {
      const int64_t step = axes[a].stepping.step;
      if (step == 0 || step >= stride || stride >= step * axes[a].size || stride % step != 0) {
        continue;
      }
      const int64_t inner = stride / step;
      if (axes[a].size % inner != 0 || offset % stride >= step) continue;
      const Axis slow = {axes[a].size / inner, axes[a].host * inner, 0, {stride, 0, 0}};
      axes[a].size = inner;
      axes.insert(a, slow);
      break;
    }
  }
}

// ------------------------------------------------------------------------- 2. on the device

void add_replicas(Axes& axes, const AddressMap& map) {
  for (const Replica& replica : map.replicas) {
    axes.push_back({replica.size, 0, 0, {0, 0, replica.device}});
  }
}

// Gives each digit of the offset to the axis that counts there or just below. Any share is right as
// long as the axes stay carry free; this one keeps slices along the layout's axes so.
int64_t share_offset(Axes& axes, const AddressMap& map, int64_t offset) {
  int64_t unshared = 0;
  for (int k = map.levels.size() - 1; k >= 0 && offset > 0; --k) {
    const int64_t stride = map.levels[k].stride;
    const int64_t part = offset / stride * stride;
    if (part == 0) continue;
    offset -= part;
    int a = 0;
    while (a < axes.size() && axes[a].stepping.step > stride) ++a;
    (a < axes.size() && axes[a].stepping.step > 0 ? axes[a].start : unshared) += part;
  }
  return unshared;
}

bool is_separable(const Axes& axes, const AddressMap& map, int64_t unshared) {
  if (map.levels.size() <= 1) return true;
  Progressions terms;
  terms.push_back({unshared, 1, unshared});
  for (const Axis& axis : axes) terms.push_back(progression_of(axis));
  return carry_free(terms, map.levels);
}

// ------------------------------------------------------------------------- 3. the box

// The axis along which the card is contiguous, or nearly.
int choose_col(const Axes& axes) {
  int best = 0;
  const auto cost = [](const Axis& axis) {
    return axis.stepping.device_step > 0 ? axis.stepping.device_step : INT64_MAX;
  };
  for (int a = 1; a < axes.size(); ++a) {
    const int64_t is = cost(axes[a]), was = cost(axes[best]);
    if (is < was || (is == was && (axes[a].host == 1 || axes[best].host != 1))) best = a;
  }
  return best;
}

int choose_row(const Axes& axes, const Axis& col) {
  int best = 0;
  for (int a = 1; a < axes.size(); ++a) {
    const Axis &is = axes[a], &was = axes[best];
    bool better = is.size > was.size;
    if (col.host != 1 && (is.host == 1) != (was.host == 1)) {
      better = is.host == 1;
    } else if (is.size >= kFewRows && was.size >= kFewRows && is.stepping.device_step > 0) {
      // Neighbours on the card: they are written together.
      better = was.stepping.device_step == 0 || is.stepping.device_step < was.stepping.device_step;
    }
    if (better) best = a;
  }
  return best;
}

BoxForm choose_form(const CopyPlan& plan, int64_t card_bytes) {
  if (plan.col.stepping.device_step != 1) return BoxForm::STRIDED;
  if (plan.col.host == 1) return BoxForm::ROWS;
  const bool whole_blocks = plan.row.size >= kFewRows && plan.col.size >= kFewRows;
  return plan.row.host == 1 && whole_blocks && card_bytes <= 4 ? BoxForm::TRANSPOSE
                                                               : BoxForm::STRIDED;
}

void choose_blocks(CopyPlan& plan) {
  switch (plan.form) {
    case BoxForm::ROWS:
      plan.col_block = std::min(plan.col.size, kRowsBlockCols);
      plan.row_block = std::max(kRowsBlockRows, kRowsBlockElements / plan.col_block);
      break;
    case BoxForm::TRANSPOSE:
      plan.row_block = kTransposeBlockRows;
      plan.col_block = kTransposeBlockCols;
      break;
    case BoxForm::STRIDED:
      plan.row_block = kStridedBlockRows;
      plan.col_block = kStridedBlockCols;
      break;
  }
}

}  // namespace

int64_t CopyPlan::units() const {
  int64_t count = row_blocks() * col_blocks();
  for (const Axis& axis : outer) count *= axis.size;
  return count;
}

CopyPlan make_copy_plan(const AddressMap& map, const View& view, const Dims& strides,
                        Replicas replicas, int64_t card_bytes) {
  Axes axes = view_axes(view, strides);
  merge_axes(axes);
  split_axes(axes, map, view.offset);
  for (Axis& axis : axes) axis.stepping = stepping(map, axis.stepping.step);
  if (replicas == Replicas::FILL_ALL) add_replicas(axes, map);

  CopyPlan plan;
  plan.start = share_offset(axes, map, view.offset);
  plan.separable = is_separable(axes, map, plan.start);
  for (const Axis& axis : axes) plan.elements *= axis.size;
  if (axes.empty()) {
    plan.col.host = 1;
    plan.col.stepping.device_step = 1;
  } else {
    const int col = choose_col(axes);
    plan.col = axes[col];
    axes.erase(col);
  }
  if (plan.separable && !axes.empty()) {
    const int row = choose_row(axes, plan.col);
    plan.row = axes[row];
    axes.erase(row);
  }
  plan.outer = axes;
  plan.form = choose_form(plan, card_bytes);
  choose_blocks(plan);
  return plan;
}

void check_view(const AddressMap& map, const View& view) {
  Progressions terms;
  bool negative = view.offset < 0;
  terms.push_back({view.offset, 1, view.offset});
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    negative |= view.strides[d] < 0;
    if (view.sizes[d] == 1 || view.strides[d] == 0) continue;
    terms.push_back({0, view.strides[d], (view.sizes[d] - 1) * view.strides[d]});
  }
  if (negative) {
    throw std::invalid_argument(
        "a view of card memory with sizes " + text(view.sizes) + ", strides " + text(view.strides) +
        " and offset " + std::to_string(view.offset) + " is not supported: none may be negative");
  }
  if (map.untiled || all_inside(terms, map.placed)) return;
  std::string shape;
  for (const Level& dim : map.dims) {
    shape += " " + std::to_string(dim.size) + " (stride " + std::to_string(dim.stride) + ")";
  }
  throw std::invalid_argument(
      "view with sizes " + text(view.sizes) + ", strides " + text(view.strides) + " and offset " +
      std::to_string(view.offset) +
      " selects elements outside those that the storage's layout places: dimensions" +
      (shape.empty() ? " none (one element)" : shape));
}

}  // namespace spyre::card
