// Copies between storages of the card against the slow model of support/storage_model.h.
#include <stdexcept>
#include <string>

#include "memory/dma.h"
#include "support/check.h"
#include "support/storage_model.h"

using namespace model;

namespace {

constexpr DataFormat kFp16 = DataFormat::SEN169_FP16;

ThreadPool& pool() {
  static ThreadPool shared(2);
  return shared;
}

// A storage: tiled, or untiled with elements one after another.
struct Storage {
  Placement placement;
  Places places;
  bool untiled = false;

  int64_t elem_bytes() const { return bytes_per_elem(placement.layout.format); }
  int64_t bytes() const {
    return untiled ? static_cast<int64_t>(places.size()) * elem_bytes() : placement.layout.bytes();
  }
  CardSide side(std::byte* base) const {
    return {base, untiled ? nullptr : &placement, untiled ? elem_bytes() : 0};
  }
};

Storage storage(const Placement& placement) {
  check_placement(placement);
  return {placement, find_places(placement)};
}

Storage untiled_storage(const Placement& placement) {
  Storage result = {placement, find_places(placement), true};
  for (size_t e = 0; e < result.places.size(); ++e) {
    result.places[e] = {static_cast<int64_t>(e)};
  }
  return result;
}

Placement ordered(const Dims& sizes, const Dims& order) {
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
  return {make_layout(sizes, strides, kFp16, order), sizes, strides};
}

void check_copy(const Storage& src, const View& src_view, const Storage& dst, const View& dst_view,
                Random& random) {
  const int64_t bytes = src.elem_bytes();
  Buffer from(src.bytes(), random), to(dst.bytes(), random);
  const Buffer from_before = from;
  Buffer expected = to;
  for_each_index(src_view.sizes, [&](const Dims& index) {
    const int64_t place = src.places.at(src_view.offset + dot(index, src_view.strides)).front();
    for (int64_t at : dst.places.at(dst_view.offset + dot(index, dst_view.strides))) {
      std::memcpy(expected.data() + at * bytes, from.data() + place * bytes, bytes);
    }
  });
  copy_on_card(src.side(from.data()), src_view, dst.side(to.data()), dst_view, pool());
  CHECK(from == from_before);
  if (!(to == expected)) {
    check::fail(__FILE__, __LINE__,
                src.placement.layout.repr() + " to " + dst.placement.layout.repr() + ", sizes " +
                    check::show(src_view.sizes) + ", strides " + check::show(src_view.strides) +
                    " and " + check::show(dst_view.strides));
  }
}

// A view of the given sizes in a storage that is a little larger, in a layout of its own.
struct Window {
  Storage storage;
  View view;
};

bool make_window(const Dims& sizes, DataFormat format, Random& random, Window& window) {
  const auto order = random_order(sizes.size(), random);  // dimensions in the storage
  Dims larger;
  Dims begin;
  for (size_t d : order) {
    begin.push_back(pick(random, 0, 1) ? 0 : pick(random, 0, 5));
    larger.push_back(begin.back() + sizes[d] + (pick(random, 0, 1) ? 0 : pick(random, 0, 5)));
  }
  const Placement placement = random_placement(larger, format, random);
  if (!is_small(placement)) return false;
  try {
    window.storage = pick(random, 0, 4) ? storage(placement) : untiled_storage(placement);
  } catch (const std::invalid_argument&) {
    return false;  // a split axis can meet the stride of another
  }
  window.view = {sizes, Dims(sizes.size()), dot(begin, placement.strides)};
  for (size_t d = 0; d < order.size(); ++d) window.view.strides[order[d]] = placement.strides[d];
  return true;
}

}  // namespace

TEST(a_matrix_is_restickified_both_ways) {
  Random random(1);
  const Storage rows = storage(ordered({300, 200}, {0, 1}));
  const Storage cols = storage(ordered({300, 200}, {1, 0}));
  check_copy(rows, full_view(rows.placement), cols, full_view(cols.placement), random);
  check_copy(cols, full_view(cols.placement), rows, full_view(rows.placement), random);
}

TEST(a_transpose_is_copied_into_a_contiguous_tensor) {
  Random random(2);
  const Storage src = storage(ordered({300, 200}, {0, 1}));
  const Storage dst = storage(ordered({200, 300}, {0, 1}));
  check_copy(src, {{200, 300}, {1, 200}, 0}, dst, full_view(dst.placement), random);
}

TEST(equal_placements_keep_their_padding_apart) {
  Random random(3);
  const Storage padded = storage(ordered({30, 100}, {0, 1}));
  check_copy(padded, full_view(padded.placement), padded, full_view(padded.placement), random);
  const View slice = {{20, 50}, {100, 2}, 107};
  check_copy(padded, slice, padded, slice, random);
  const Storage full = storage(ordered({512, 128}, {0, 1}));  // no padding: all bytes at once
  check_copy(full, full_view(full.placement), full, full_view(full.placement), random);
  const Storage sparse = storage(ordered({30, 10}, {0, 1, -1}));
  check_copy(sparse, full_view(sparse.placement), sparse, full_view(sparse.placement), random);
}

TEST(a_broadcast_axis_is_read_once_and_filled) {
  Random random(4);
  const Placement broadcast = {{{1, 5, 64}, {64, 0, 1}, kFp16}, {60}, {1}};
  const Storage many = storage(broadcast), one = storage(ordered({60}, {0}));
  check_copy(one, full_view(one.placement), many, full_view(broadcast), random);
  check_copy(many, full_view(broadcast), one, full_view(one.placement), random);
  check_copy(many, full_view(broadcast), many, full_view(broadcast), random);
}

TEST(an_expanded_source_fills_the_destination) {
  Random random(5);
  const Storage row = storage(ordered({100}, {0})), matrix = storage(ordered({30, 100}, {1, 0}));
  check_copy(row, {{30, 100}, {0, 1}, 0}, matrix, full_view(matrix.placement), random);
}

TEST(random_views_are_copied_between_random_layouts) {
  Random random(6);
  int copied = 0;
  for (int i = 0; i < 800; ++i) {
    const Dims sizes = random_sizes(random, 6000);
    const DataFormat formats[] = {kFp16, DataFormat::IEEE_FP32, DataFormat::SEN143_FP8,
                                  DataFormat::IEEE_INT64};
    const DataFormat format = formats[random() % 4];
    Window src, dst;
    if (!make_window(sizes, format, random, src) || !make_window(sizes, format, random, dst)) {
      continue;
    }
    check_copy(src.storage, src.view, dst.storage, dst.view, random);
    ++copied;
  }
  CHECK(copied > 500);
}

TEST(large_copies_on_several_threads_are_right) {
  Random random(7);
  const Storage rows = storage(ordered({700, 300}, {0, 1}));
  const Storage cols = storage(ordered({700, 300}, {1, 0}));
  const Storage flat = untiled_storage(ordered({700, 300}, {0, 1}));
  const View view = full_view(rows.placement), most = {{699, 300}, {300, 1}, 300};
  check_copy(rows, view, cols, view, random);
  check_copy(cols, view, rows, view, random);
  check_copy(rows, view, rows, view, random);
  check_copy(cols, most, cols, most, random);
  check_copy(rows, view, flat, view, random);
  check_copy(flat, view, cols, view, random);
  check_copy(flat, view, flat, view, random);
}

TEST(disjoint_parts_of_one_storage_are_copied_within_it) {
  Random random(8);
  const Storage matrix = storage(ordered({64, 100}, {0, 1}));
  Buffer memory(matrix.bytes(), random);
  Buffer expected = memory;
  const View upper = {{32, 100}, {100, 1}, 0}, lower = {{32, 100}, {100, 1}, 3200};
  for (int64_t e = 0; e < 3200; ++e) {
    std::memcpy(expected.data() + 2 * matrix.places[e + 3200].front(),
                expected.data() + 2 * matrix.places[e].front(), 2);
  }
  copy_on_card(matrix.side(memory.data()), upper, matrix.side(memory.data()), lower, pool());
  CHECK(memory == expected);
  copy_on_card(matrix.side(memory.data()), upper, matrix.side(memory.data()), upper, pool());
  CHECK(memory == expected);  // onto itself
}

TEST(impossible_copies_are_refused) {
  Random random(9);
  const Storage matrix = storage(ordered({4, 60}, {0, 1}));
  Buffer memory(matrix.bytes(), random);
  const Buffer before = memory;
  const CardSide side = matrix.side(memory.data());
  const View view = full_view(matrix.placement);
  CHECK_THROWS(copy_on_card(side, view, side, {{60, 4}, {1, 60}, 0}, pool()), std::invalid_argument,
               "same sizes");
  CHECK_THROWS(copy_on_card(side, view, {memory.data(), nullptr, 4}, view, pool()),
               std::invalid_argument, "2 and 4 bytes");
  CHECK_THROWS(copy_on_card(side, {{4, 60}, {60, 1}, 1}, side, view, pool()), std::invalid_argument,
               "outside");
  CHECK_THROWS(copy_on_card(side, view, side, {{4, 60}, {60, 1}, 1}, pool()), std::invalid_argument,
               "outside");
  copy_on_card(side, {{0, 60}, {60, 1}, 0}, side, {{0, 60}, {60, 1}, 0}, pool());
  CHECK(memory == before);
}
