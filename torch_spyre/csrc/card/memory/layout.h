// How a tensor lies on the card: sticks of 128 bytes, tiled.
//
// A StickLayout describes device memory as a row-major array `device_size` whose last axis is one
// stick; `stride_map[j]` is the host-element stride of device axis j (-1: synthetic axis or host
// dimension of size 1, only index 0 holds data; 0: broadcast, every index holds the same data).
// A Placement is a layout with the logical sizes and strides it was made for: together they say
// where each element of a storage lives and which device positions are padding.
//
// Example: host (512, 240) float16, row-major -> device_size [4, 512, 64], stride_map [64, 240, 1].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "numerics/formats.h"

namespace spyre::card {

using Dims = std::vector<int64_t>;

std::string text(const Dims& dims);  // "[4, 512, 64]"

struct StickLayout {
  Dims device_size;
  Dims stride_map;
  DataFormat format = DataFormat::INVALID;
  ElementArrangement arrangement = ElementArrangement::STANDARD;

  int64_t bytes() const;         // kStickBytes * prod(device_size[:-1])
  int64_t num_elements() const;  // prod(device_size)
  bool operator==(const StickLayout&) const = default;
  std::string repr() const;  // a valid constructor call, see REFERENCE 1.4
};

// The documented default rule. `dim_order` may be one longer than `host_size` with a final -1
// (sparse: one element per stick). Throws std::invalid_argument with the documented texts:
// "Unsupported tensor rank: r", "Incompatible host_size and dim_order".
StickLayout make_layout(const Dims& host_size, const Dims& host_strides, DataFormat format,
                        const Dims& dim_order,
                        ElementArrangement arrangement = ElementArrangement::STANDARD);
// Of a row-major tensor; in its natural order if none is given.
StickLayout make_layout(const Dims& host_size, DataFormat format, const Dims& dim_order,
                        ElementArrangement arrangement = ElementArrangement::STANDARD);
StickLayout make_layout(const Dims& host_size, DataFormat format);

// Throws std::invalid_argument when the axes themselves are impossible, whatever the tensor.
void check_layout(const StickLayout& layout);

struct Placement {
  StickLayout layout;
  Dims sizes;    // logical shape the layout was made for
  Dims strides;  // its strides, in elements of the storage
};

// Throws std::invalid_argument that says what is wrong and what is allowed: device_size and
// stride_map of different length, a last axis that is not one stick of the format, non-positive
// device sizes, a stride below -1, two axes (size > 1) of equal positive stride, or a layout that
// does not give every element of (sizes, strides) a place ("layout ... is too small for ...").
void check_placement(const Placement& placement);

}  // namespace spyre::card
