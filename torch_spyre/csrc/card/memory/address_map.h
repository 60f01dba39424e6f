// Where the elements of a storage lie on the card.
//
// In: a Placement. Out: an AddressMap that turns a storage element into a device element.
// The device axes that hold data are levels of a mixed radix over the storage offset, e.g.
// device_size [4, 512, 64], stride_map [64, 240, 1] has the levels (1: 64), (64: 4), (240: 512),
// and element 250 = 1*240 + 0*64 + 10 lies at 1*64 + 0*512*64 + 10.
#pragma once

#include "memory/layout.h"
#include "memory/mixed_radix.h"

namespace spyre::card {

// A broadcast device axis: each of its indices holds a copy.
struct Replica {
  int64_t size;
  int64_t device;  // device elements from one copy to the next
};

struct AddressMap {
  Levels levels;  // by rising stride; none: only element 0 has a place
  InlineVector<Replica, kMaxCopyDims> replicas;
  // The logical shape as levels: dimension by dimension, and joined, which says what storage
  // elements exist. Both are empty when `untiled`: any element may then be used.
  Levels dims;
  Levels placed;
  bool untiled = false;

  int64_t locate(int64_t element) const {
    int64_t device = 0;
    for (int k = levels.size() - 1; k >= 0; --k) {
      if (element < levels[k].stride) continue;
      device += element / levels[k].stride * levels[k].device;
      element %= levels[k].stride;
    }
    return device;
  }
};

AddressMap make_address_map(const Placement& placement);
AddressMap untiled_address_map();

// What the axis that counts the sticks of a row means beside its stride.
struct StickAxis {
  int index = -1;        // in device_size; -1: it is an axis like the others
  bool widened = false;  // with the stick axis, it is in the order DL16_TO_FP32
  bool idle = false;     // over-allocated: rows are shorter than a stick, only index 0 holds data
};
StickAxis stick_axis(const Placement& placement);

// A logical shape as levels; dimensions of size 1 and broadcast ones are left out.
Levels shape_levels(const Dims& sizes, const Dims& strides);

// Elements start, start + step, ... of a storage that lie evenly spaced on the device.
struct Run {
  int64_t count;
  int64_t device;  // of the first
};

// How a progression of the given step moves over the device.
struct Stepping {
  int64_t step;         // in storage elements
  int level;            // whose digit counts, or -1: each element is a run of its own
  int64_t device_step;  // within a run
};
Stepping stepping(const AddressMap& map, int64_t step);

// The run that begins at `element`, at most `limit` long.
Run run_at(const AddressMap& map, const Stepping& stepping, int64_t element, int64_t limit);

}  // namespace spyre::card
