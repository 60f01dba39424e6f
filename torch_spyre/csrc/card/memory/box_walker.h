// Visits the boxes of a CopyPlan: rectangles that are affine on the card and on the other side.
//
// A copy is cut into units (CopyPlan::units), numbered so that any range of them can be visited on
// its own by any thread. A unit is one or more boxes: one for each run of rows and of columns.
#pragma once

#include <algorithm>

#include "memory/copy_plan.h"

namespace spyre::card {

// Rows and columns of a box are spaced as plan.row and plan.col say.
struct Box {
  int64_t host, device;  // its first element, on the other side and on the card
  int64_t rows, cols;
  int64_t next;  // where on the card the next box begins, as far as it is known; else -1
};

class BoxWalker {
 public:
  BoxWalker(const CopyPlan& plan, const AddressMap& map) : plan_(plan), map_(map) {}

  template <class Visit>
  void walk(int64_t first_unit, int64_t last_unit, Visit&& visit) {
    if (first_unit >= last_unit) return;
    seek(first_unit);
    for (int64_t unit = first_unit; unit < last_unit; ++unit) {
      if (unit > first_unit) advance();
      visit_unit(visit);
    }
  }

 private:
  static constexpr int kMaxRuns = 64;

  // Units go through row blocks first, then outer indices, then column blocks: the runs of the
  // columns, the same for all rows, are found once.
  void seek(int64_t unit) {
    row_block_ = unit % plan_.row_blocks();
    unit /= plan_.row_blocks();
    for (int a = plan_.outer.size() - 1; a >= 0; --a) {
      index_[a] = unit % plan_.outer[a].size;
      unit /= plan_.outer[a].size;
    }
    col_block_ = unit;
    enter_outer();
  }

  void advance() {
    if (++row_block_ < plan_.row_blocks()) return;
    row_block_ = 0;
    int a = plan_.outer.size() - 1;
    while (a >= 0 && ++index_[a] == plan_.outer[a].size) index_[a--] = 0;
    if (a < 0) ++col_block_;
    enter_outer();
  }

  void enter_outer() {
    int64_t element = plan_.start, replica = 0;
    host_ = 0;
    for (int a = 0; a < plan_.outer.size(); ++a) {
      const Axis& axis = plan_.outer[a];
      element += axis.start + index_[a] * axis.stepping.step;
      if (axis.stepping.step == 0) replica += index_[a] * axis.stepping.device_step;
      host_ += index_[a] * axis.host;
    }
    // What is not separable is located together with the columns.
    device_ = replica + (plan_.separable ? map_.locate(element) : 0);
    col_start_ = plan_.col.start + (plan_.separable ? 0 : element);
  }

  template <class Visit>
  void visit_unit(Visit& visit) {
    const int64_t row_begin = row_block_ * plan_.row_block;
    const int64_t row_end = std::min(row_begin + plan_.row_block, plan_.row.size);
    int64_t col = col_block_ * plan_.col_block;
    const int64_t col_end = std::min(col + plan_.col_block, plan_.col.size);
    while (col < col_end) {
      find_runs(col, col_end);
      for (int64_t row = row_begin; row < row_end;) {
        const Run rows = run_at(map_, plan_.row.stepping,
                                plan_.row.start + row * plan_.row.stepping.step, row_end - row);
        // A broadcast axis steps on the card alone.
        const int64_t replica =
            plan_.row.stepping.step == 0 ? row * plan_.row.stepping.device_step : 0;
        const int64_t host = host_ + row * plan_.row.host;
        visit_runs(visit, host, device_ + rows.device + replica, rows.count);
        row += rows.count;
      }
      col = runs_end_;
    }
  }

  template <class Visit>
  void visit_runs(Visit& visit, int64_t host, int64_t device, int64_t rows) {
    int64_t col = runs_begin_;
    for (int i = 0; i < num_runs_; ++i) {
      const int64_t next = i + 1 < num_runs_ ? device + runs_[i + 1].device : -1;
      visit(Box{host + col * plan_.col.host, device + runs_[i].device, rows, runs_[i].count, next});
      col += runs_[i].count;
    }
  }

  void find_runs(int64_t begin, int64_t end) {
    if (num_runs_ > 0 && begin == runs_begin_ && col_start_ == runs_start_) return;
    runs_begin_ = begin;
    runs_start_ = col_start_;
    num_runs_ = 0;
    const Stepping& stepping = plan_.col.stepping;
    while (begin < end && num_runs_ < kMaxRuns) {
      Run run = run_at(map_, stepping, col_start_ + begin * stepping.step, end - begin);
      if (stepping.step == 0) run.device += begin * stepping.device_step;
      runs_[num_runs_++] = run;
      begin += run.count;
    }
    runs_end_ = begin;
  }

  const CopyPlan& plan_;
  const AddressMap& map_;
  int64_t row_block_ = 0, col_block_ = 0;
  int64_t index_[kMaxCopyDims];
  int64_t host_ = 0, device_ = 0;  // of the outer indices
  int64_t col_start_ = 0;          // storage element of column 0
  // Columns [runs_begin_, runs_end_) from storage element runs_start_ on.
  int64_t runs_begin_ = 0, runs_end_ = 0, runs_start_ = 0;
  int num_runs_ = 0;
  Run runs_[kMaxRuns];
};

}  // namespace spyre::card
