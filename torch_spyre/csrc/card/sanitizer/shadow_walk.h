// Visits the elements of a view by where they lie on the card: what the sanitizer does for copies.
#pragma once

#include <cstdint>

#include "memory/box_walker.h"

namespace spyre::card {

// How the elements of a view are numbered: row-major. With room after the rows, numbers of one
// column are no multiples of a power of two, which caches do not like.
inline Dims numbering(const Dims& sizes, int64_t room = 0) {
  Dims strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d] + room;
  return strides;
}

// Elements number, number + step, ... of a view, evenly spaced on the card.
struct ElementRun {
  int64_t number, step;
  int64_t device, device_step;  // in elements
  int64_t count;
};

template <class Visit>
void for_each_run(const AddressMap& map, const View& view, int64_t elem_bytes, Replicas replicas,
                  const Dims& strides, Visit&& visit) {
  const CopyPlan plan = make_copy_plan(map, view, strides, replicas, elem_bytes);
  BoxWalker(plan, map).walk(0, plan.units(), [&](const Box& box) {
    for (int64_t r = 0; r < box.rows; r++) {
      visit(ElementRun{box.host + r * plan.row.host, plan.col.host,
                       box.device + r * plan.row.stepping.device_step,
                       plan.col.stepping.device_step, box.cols});
    }
  });
}

// Calls visit(number of the element in the view, its place on the card in elements).
template <class Visit>
void for_each_element(const AddressMap& map, const View& view, int64_t elem_bytes,
                      Replicas replicas, Visit&& visit) {
  const Dims strides = numbering(view.sizes);
  for_each_run(map, view, elem_bytes, replicas, strides, [&](const ElementRun& run) {
    for (int64_t i = 0; i < run.count; i++) {
      visit(run.number + i * run.step, run.device + i * run.device_step);
    }
  });
}

}  // namespace spyre::card
