// Copies to and from the card against the slow model of support/storage_model.h: all bytes of both
// sides are compared, so that nothing but the selected elements may change.
#include "memory/dma.h"

#include <cstdio>
#include <string>

#include "numerics/convert.h"
#include "support/check.h"
#include "support/storage_model.h"

using namespace model;

namespace {

ThreadPool& pool() {
  static ThreadPool shared(2);
  return shared;
}

Dims row_major(const Dims& sizes) {
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  return strides;
}

Placement raw_placement(const Dims& sizes, const Dims& device_size, const Dims& stride_map,
                        DataFormat format = DataFormat::SEN169_FP16) {
  return {{device_size, stride_map, format}, sizes, row_major(sizes)};
}

int64_t host_extent(const Dims& sizes, const Dims& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  return last + 1;
}

std::string describe(const Placement& placement, const View& view, const Dims& host_strides) {
  return placement.layout.repr() + " of " + check::show(placement.sizes) + "/" +
         check::show(placement.strides) + ", view " + check::show(view.sizes) + "/" +
         check::show(view.strides) + "+" + std::to_string(view.offset) + ", host strides " +
         check::show(host_strides);
}

struct Case {
  const Placement& placement;
  const Places& places;
  const View& view;
  Dims host_strides;
  HostType type = HostType::RAW;
  Numerics numerics = Numerics::DLFLOAT16;

  int64_t card_bytes() const { return bytes_per_elem(placement.layout.format); }
  int64_t host_bytes() const { return type == HostType::RAW ? card_bytes() : bytes_of(type); }
  CardSide card(Buffer& buffer) const { return {buffer.data(), &placement, 0}; }
};

// One element through the table: the conversions have tests of their own.
void convert_one(const Case& c, std::byte* to, const std::byte* from, bool to_card) {
  const auto conversion =
      static_cast<int>(*find_conversion(c.type, c.placement.layout.format, c.numerics));
  const ConvertTable& table = convert_table(Simd::PORTABLE);
  (void)(to_card ? table.to_card : table.from_card)[conversion](to, 0, from, 0, 1, 1,
                                                                Stores::CACHED);
}

// Bytes that mean something in the host type: booleans are 0 or 1, 64-bit integers fit 32 bits.
void make_valid(Buffer& host, int64_t elements, HostType type) {
  if (type == HostType::BOOL) {
    for (int64_t i = 0; i < elements; ++i) host.data()[i] &= std::byte{1};
  }
  if (type == HostType::I64) {
    for (int64_t i = 0; i < elements; ++i) {
      int64_t value;
      std::memcpy(&value, host.data() + 8 * i, 8);
      value >>= 32;
      std::memcpy(host.data() + 8 * i, &value, 8);
    }
  }
}

void check_write(const Case& c, Random& random) {
  const int64_t extent = host_extent(c.view.sizes, c.host_strides);
  Buffer card(c.placement.layout.bytes(), random), host(extent * c.host_bytes(), random);
  make_valid(host, extent, c.type);
  const Buffer host_before = host;
  Buffer expected = card;
  for_each_index(c.view.sizes, [&](const Dims& index) {
    const std::byte* from = host.data() + dot(index, c.host_strides) * c.host_bytes();
    for (int64_t place : c.places.at(c.view.offset + dot(index, c.view.strides))) {
      convert_one(c, expected.data() + place * c.card_bytes(), from, true);
    }
  });
  CHECK(copy_to_card(c.card(card), c.view, {host.data(), c.type, c.host_strides}, c.numerics,
                     pool()));
  CHECK(host == host_before);
  if (!(card == expected)) {
    check::fail(__FILE__, __LINE__, "write " + describe(c.placement, c.view, c.host_strides));
  }
}

void check_read(const Case& c, Random& random) {
  Buffer card(c.placement.layout.bytes(), random);
  Buffer host(host_extent(c.view.sizes, c.host_strides) * c.host_bytes(), random);
  const Buffer card_before = card;
  Buffer expected = host;
  for_each_index(c.view.sizes, [&](const Dims& index) {
    const int64_t place = c.places.at(c.view.offset + dot(index, c.view.strides)).front();
    convert_one(c, expected.data() + dot(index, c.host_strides) * c.host_bytes(),
                card.data() + place * c.card_bytes(), false);
  });
  copy_from_card(c.card(card), c.view, {host.data(), c.type, c.host_strides}, c.numerics, pool());
  CHECK(card == card_before);
  if (!(host == expected)) {
    check::fail(__FILE__, __LINE__, "read " + describe(c.placement, c.view, c.host_strides));
  }
}

void check_both(const Case& c, Random& random) {
  check_write(c, random);
  check_read(c, random);
}

void check_whole(const Placement& placement, Random& random) {
  check_placement(placement);
  const Places places = find_places(placement);
  int64_t elements = 1;
  for (int64_t size : placement.sizes) elements *= size;
  CHECK_EQ(count_placed(places), elements);
  check_both({placement, places, full_view(placement), row_major(placement.sizes)}, random);
}

struct TypePair {
  HostType type;
  DataFormat format;
  Numerics numerics = Numerics::DLFLOAT16;
};

const std::vector<TypePair>& type_pairs() {
  static const std::vector<TypePair> pairs = {
      {HostType::F16, DataFormat::SEN169_FP16},
      {HostType::BF16, DataFormat::SEN169_FP16},
      {HostType::F32, DataFormat::SEN169_FP16},
      {HostType::BOOL, DataFormat::SEN169_FP16},
      {HostType::RAW, DataFormat::SEN169_FP16},
      {HostType::F16, DataFormat::SEN169_FP16, Numerics::IEEE},
      {HostType::BF16, DataFormat::SEN169_FP16, Numerics::IEEE},
      {HostType::F32, DataFormat::SEN169_FP16, Numerics::IEEE},
      {HostType::BOOL, DataFormat::SEN169_FP16, Numerics::IEEE},
      {HostType::F32, DataFormat::IEEE_FP32},
      {HostType::F16, DataFormat::IEEE_FP32},
      {HostType::BF16, DataFormat::IEEE_FP32},
      {HostType::I64, DataFormat::IEEE_INT32},
      {HostType::I32, DataFormat::IEEE_INT32},
      {HostType::I16, DataFormat::SENINT16},
      {HostType::I8, DataFormat::SENINT8},
      {HostType::U8, DataFormat::SENUINT32},
      {HostType::U8, DataFormat::SEN143_FP8},
      {HostType::I8, DataFormat::SEN152_FP8},
      {HostType::RAW, DataFormat::SEN143_FP8},
      {HostType::RAW, DataFormat::IEEE_INT64},
      {HostType::RAW, DataFormat::SENUINT32},
      {HostType::I64, DataFormat::IEEE_INT64},
      {HostType::F16, DataFormat::IEEE_FP16},
      {HostType::BF16, DataFormat::BFLOAT16},
      {HostType::BOOL, DataFormat::BOOL},
  };
  return pairs;
}

}  // namespace

TEST(a_default_layout_places_elements_as_documented) {
  const Dims sizes = {3, 100};
  const Placement placement = {make_layout(sizes, DataFormat::SEN169_FP16), sizes, {100, 1}};
  std::vector<uint16_t> card(placement.layout.num_elements(), 0xffff), host(300);
  for (int i = 0; i < 300; ++i) host[i] = static_cast<uint16_t>(i);
  CHECK(copy_to_card({reinterpret_cast<std::byte*>(card.data()), &placement, 0},
                     full_view(placement), {host.data(), HostType::RAW, {100, 1}},
                     Numerics::DLFLOAT16, pool()));
  // [2][3][64]: stick, row, element.
  CHECK_EQ(card[0], 0);
  CHECK_EQ(card[64 + 5], 105);
  CHECK_EQ(card[3 * 64], 64);
  CHECK_EQ(card[3 * 64 + 2 * 64 + 35], 299);
  CHECK_EQ(card[3 * 64 + 36], 0xffff);  // padding
}

TEST(the_raw_layouts_of_the_reference_are_copied_as_the_model_says) {
  Random random(1);
  check_whole(raw_placement({4800}, {3, 2, 14, 64}, {120, 64, 360, 1}), random);
  check_whole(raw_placement({40, 60}, {38, 64}, {64, 1}), random);
  check_whole(raw_placement({40, 60}, {1, 512, 64}, {64, 60, 1}), random);
  check_whole(raw_placement({60}, {1, 512, 64}, {64, 0, 1}), random);
  check_whole(raw_placement({40, 60}, {24, 1, 2, 64}, {60, 64, 1440, 1}), random);
  check_whole(raw_placement({40, 60}, {1, 1, 1, 40, 1, 64}, {-1, 7, 64, 60, -1, 1}), random);
  check_whole(raw_placement({}, {1, 64}, {-1, -1}), random);
  check_whole(raw_placement({1, 1}, {1, 1, 64}, {-1, -1, -1}), random);
}

TEST(an_over_allocated_stick_axis_holds_padding_only) {
  // Rows of 60 end inside the first stick: the second one is never used, though 64 < 40 * 60.
  Random random(2);
  for (const Placement& placement : {raw_placement({40, 60}, {2, 40, 64}, {64, 60, 1}),
                                     raw_placement({40, 64}, {3, 40, 64}, {64, 64, 1})}) {
    check_placement(placement);
    Places places(40 * placement.sizes[1]);
    for (int64_t row = 0; row < 40; ++row) {
      for (int64_t col = 0; col < placement.sizes[1]; ++col) {
        places[row * placement.sizes[1] + col] = {row * 64 + col};
      }
    }
    check_both({placement, places, full_view(placement), row_major(placement.sizes)}, random);
  }
}

TEST(widened_sticks_are_read_and_written_in_the_order_of_the_columns) {
  Random random(3);
  // 100 columns: two pairs of sticks, of which the last stick holds the odd groups of 4.
  Placement placement = raw_placement({5, 100}, {4, 5, 32}, {32, 100, 1}, DataFormat::IEEE_FP32);
  placement.layout.arrangement = ElementArrangement::DL16_TO_FP32;
  check_placement(placement);
  const Places places = find_places(placement);
  CHECK_EQ(count_placed(places), 500);
  CHECK_EQ(places.at(4).front(), 5 * 32);                // column 4: second stick of the pair
  CHECK_EQ(places.at(8 + 1).front(), 4 + 1);             // column 9: group 1 of the first
  CHECK_EQ(places.at(64 + 4 + 3).front(), 15 * 32 + 3);  // column 71
  const View slice = {{5, 30}, {100, 2}, 7};
  for (const View& view : {full_view(placement), slice}) {
    check_both({placement, places, view, row_major(view.sizes), HostType::F32}, random);
  }
  // Rows that end before the second stick would begin.
  for (int64_t cols : {3, 4, 6, 8, 20, 32, 40}) {
    Placement few = raw_placement({7, cols}, {2, 7, 32}, {32, cols, 1}, DataFormat::IEEE_FP32);
    few.layout.arrangement = ElementArrangement::DL16_TO_FP32;
    check_placement(few);
    Places expected(7 * cols);
    for (int64_t row = 0; row < 7; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        expected[row * cols + col] = {col % 8 / 4 * 7 * 32 + row * 32 + col / 8 * 4 + col % 4};
      }
    }
    check_both({few, expected, full_view(few), row_major(few.sizes)}, random);
  }
}

TEST(other_arrangements_are_in_standard_order) {
  Random random(4);
  Placement standard = raw_placement({5, 100}, {2, 5, 64}, {64, 100, 1});
  const Places places = find_places(standard);
  for (auto arrangement :
       {ElementArrangement::QFP8CH, ElementArrangement::EXX2, ElementArrangement::DL16_TO_FP32}) {
    Placement placement = standard;  // 16-bit elements: there is nothing to widen
    placement.layout.arrangement = arrangement;
    check_both({placement, places, full_view(placement), row_major(placement.sizes)}, random);
  }
}

TEST(every_pair_of_types_goes_both_ways_through_every_kind_of_box) {
  Random random(5);
  const Dims sizes = {70, 150};
  for (const TypePair& pair : type_pairs()) {
    CHECK(has_conversion(pair.type, pair.format));
    for (const Dims& order : {Dims{0, 1}, Dims{1, 0}, Dims{0, 1, -1}}) {
      const Placement placement = {
          make_layout(sizes, {150, 1}, pair.format, order), sizes, {150, 1}};
      check_placement(placement);
      const Places places = find_places(placement);
      for (const Dims& host_strides : {Dims{150, 1}, Dims{1, 70}, Dims{310, 2}}) {
        check_both(
            {placement, places, full_view(placement), host_strides, pair.type, pair.numerics},
            random);
      }
    }
  }
}

TEST(random_views_of_random_layouts_touch_exactly_their_elements) {
  Random random(6);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    const TypePair& pair = type_pairs()[random() % type_pairs().size()];
    const Dims sizes = random_sizes(random, 8000);
    const Placement placement = random_placement(sizes, pair.format, random);
    if (!is_small(placement)) continue;
    try {
      check_placement(placement);
    } catch (const std::invalid_argument&) {
      ++refused;  // a split axis can meet the stride of another
      continue;
    }
    const Places places = find_places(placement);
    for (int j = 0; j < 4; ++j) {
      const View write = random_view(placement, ViewUse::WRITE, random);
      check_write({placement, places, write,
                   random_strides(write.sizes, pick(random, 0, 1), pick(random, 0, 1), random),
                   pair.type, pair.numerics},
                  random);
      const View read = random_view(placement, ViewUse::READ, random);
      check_read({placement, places, read,
                  random_strides(read.sizes, pick(random, 0, 1), pick(random, 0, 1), random),
                  pair.type, pair.numerics},
                 random);
    }
  }
  CHECK(refused < 50);
}

TEST(an_expanded_host_tensor_is_written_to_all_its_elements) {
  Random random(7);
  const Placement placement = raw_placement({40, 60}, {1, 40, 64}, {64, 60, 1});
  const Places places = find_places(placement);
  check_write({placement, places, full_view(placement), {0, 1}, HostType::F16}, random);
  check_write({placement, places, full_view(placement), {1, 0}, HostType::F16}, random);
  check_write({placement, places, full_view(placement), {0, 0}, HostType::F16}, random);
}

TEST(large_copies_on_several_threads_are_right) {
  Random random(8);
  const Dims sizes = {1100, 2100};  // above the sizes where threads and streaming stores begin
  const Dims strides = row_major(sizes);
  for (const Dims& order : {Dims{0, 1}, Dims{1, 0}}) {
    const Placement placement = {make_layout(sizes, strides, DataFormat::SEN169_FP16, order), sizes,
                                 strides};
    check_placement(placement);
    // The model's maps would be slow here: both orders have a closed form.
    Dims place(sizes[0] * sizes[1]);
    for (int64_t r = 0; r < sizes[0]; ++r) {
      for (int64_t c = 0; c < sizes[1]; ++c) {
        place[r * sizes[1] + c] = order[0] == 0 ? (c / 64 * sizes[0] + r) * 64 + c % 64
                                                : (r / 64 * sizes[1] + c) * 64 + r % 64;
      }
    }
    const View odd = {{1099, 2000}, {2100, 1}, 2100 + 37};
    const View flat = {{2309900}, {1}, 77};
    for (const View& view : {full_view(placement), odd, flat}) {
      const Dims host_strides = row_major(view.sizes);
      const int64_t count = host_extent(view.sizes, host_strides);
      Buffer card(placement.layout.bytes(), random), host(2 * count, random);
      Buffer expected_card = card;
      int64_t i = 0;
      for_each_index(view.sizes, [&](const Dims& index) {
        std::memcpy(expected_card.data() + 2 * place[view.offset + dot(index, view.strides)],
                    host.data() + 2 * i++, 2);
      });
      const CardSide side = {card.data(), &placement, 0};
      CHECK(copy_to_card(side, view, {host.data(), HostType::RAW, host_strides},
                         Numerics::DLFLOAT16, pool()));
      CHECK(card == expected_card);
      Buffer back(2 * count, random);
      Buffer expected_back = back;
      std::memcpy(expected_back.data(), host.data(), 2 * count);
      copy_from_card(side, view, {back.data(), HostType::RAW, host_strides}, Numerics::DLFLOAT16,
                     pool());
      CHECK(back == expected_back);
    }
  }
}

TEST(untiled_storages_are_strided_memory) {
  Random random(9);
  for (int64_t bytes : {1, 2, 4, 8, 16}) {
    const View view = {{20, 30}, {40, 1}, 3};
    for (const Dims& host_strides : {Dims{30, 1}, Dims{1, 20}}) {
      Buffer card(20 * 40 * bytes, random), host(600 * bytes, random);
      Buffer expected = card;
      for_each_index(view.sizes, [&](const Dims& index) {
        std::memcpy(expected.data() + (3 + dot(index, view.strides)) * bytes,
                    host.data() + dot(index, host_strides) * bytes, bytes);
      });
      const CardSide side = {card.data(), nullptr, bytes};
      CHECK(copy_to_card(side, view, {host.data(), HostType::RAW, host_strides},
                         Numerics::DLFLOAT16, pool()));
      CHECK(card == expected);
      Buffer back(600 * bytes, random);
      copy_from_card(side, view, {back.data(), HostType::RAW, host_strides}, Numerics::DLFLOAT16,
                     pool());
      CHECK(std::memcmp(back.data(), host.data(), 600 * bytes) == 0);
    }
  }
}

TEST(integers_that_do_not_fit_are_reported_wherever_they_are) {
  const Dims sizes = {300, 400};
  for (const Dims& order : {Dims{0, 1}, Dims{1, 0}, Dims{0, 1, -1}}) {
    const Placement placement = {
        make_layout(sizes, {400, 1}, DataFormat::IEEE_INT32, order), sizes, {400, 1}};
    std::vector<std::byte> card(placement.layout.bytes());
    std::vector<int64_t> host(300 * 400, -5);
    const auto copy = [&] {
      return copy_to_card({card.data(), &placement, 0}, full_view(placement),
                          {host.data(), HostType::I64, {400, 1}}, Numerics::DLFLOAT16, pool());
    };
    host[17] = INT32_MAX;
    host[18] = INT32_MIN;
    CHECK(copy());
    for (int64_t at : {0, 399, 70000, 300 * 400 - 1}) {
      for (int64_t value : {int64_t{INT32_MAX} + 1, int64_t{INT32_MIN} - 1, INT64_MIN}) {
        host[at] = value;
        CHECK(!copy());
        host[at] = -5;
      }
    }
    CHECK(copy());
  }
}

TEST(an_empty_view_copies_nothing) {
  const Placement placement = raw_placement({40, 60}, {1, 40, 64}, {64, 60, 1});
  const CardSide side = {nullptr, &placement, 0};
  const View view = {{0, 60}, {60, 1}, 0};
  CHECK(copy_to_card(side, view, {nullptr, HostType::F16, {60, 1}}, Numerics::DLFLOAT16, pool()));
  copy_from_card(side, view, {nullptr, HostType::F16, {60, 1}}, Numerics::DLFLOAT16, pool());
}

TEST(views_that_leave_the_placed_elements_are_refused_before_anything_is_copied) {
  Random random(10);
  const Placement dense = raw_placement({4, 60}, {1, 4, 64}, {64, 60, 1});
  Placement gaps = dense;
  gaps.strides = {100, 1};
  gaps.layout.stride_map = {64, 100, 1};
  check_placement(gaps);
  Buffer card(dense.layout.bytes(), random), host(4096, random);
  const Buffer card_before = card, host_before = host;
  const auto refuses = [&](const Placement& placement, const View& view, const char* part) {
    const CardSide side = {card.data(), &placement, 0};
    const HostSide other = {host.data(), HostType::RAW, Dims(view.sizes.size(), 1)};
    CHECK_THROWS(copy_to_card(side, view, other, Numerics::DLFLOAT16, pool()),
                 std::invalid_argument, part);
    CHECK_THROWS(copy_from_card(side, view, other, Numerics::DLFLOAT16, pool()),
                 std::invalid_argument, part);
  };
  refuses(dense, {{241}, {1}, 0}, "outside");
  refuses(dense, {{1}, {1}, 240}, "outside");
  refuses(dense, {{4, 60}, {60, 1}, 1}, "[4, 60]");
  refuses(gaps, {{61}, {1}, 0}, "outside");  // into the gap
  refuses(gaps, {{4, 60}, {100, 1}, 1}, "outside");
  refuses(gaps, {{1}, {1}, 62}, "outside");  // a place in the stick, but padding
  refuses(gaps, {{5}, {100}, 0}, "outside");
  refuses(dense, {{3}, {-1}, 2}, "negative");
  refuses(dense, {{3}, {1}, -1}, "negative");
  CHECK(card == card_before);
  CHECK(host == host_before);
  // A view with gaps of its own that stays on placed elements is fine.
  const Places places = find_places(gaps);
  check_both({gaps, places, {{4, 20}, {100, 3}, 2}, {20, 1}}, random);
  check_both({gaps, places, {{3, 7}, {101, 2}, 4}, {7, 1}}, random);
}

TEST(copies_without_a_conversion_are_refused) {
  const Placement placement = raw_placement({4, 60}, {1, 4, 64}, {64, 60, 1});
  std::vector<std::byte> card(placement.layout.bytes()), host(4096);
  const View view = full_view(placement);
  CHECK_THROWS(copy_to_card({card.data(), &placement, 0}, view,
                            {host.data(), HostType::I64, {60, 1}}, Numerics::DLFLOAT16, pool()),
               std::invalid_argument,
               "no conversion between host type I64 and device format SEN169");
  CHECK_THROWS(copy_from_card({card.data(), nullptr, 2}, view,
                              {host.data(), HostType::F32, {60, 1}}, Numerics::DLFLOAT16, pool()),
               std::invalid_argument, "untiled elements of 2 bytes");
  CHECK_THROWS(copy_from_card({card.data(), nullptr, 3}, view,
                              {host.data(), HostType::RAW, {60, 1}}, Numerics::DLFLOAT16, pool()),
               std::invalid_argument, "3 bytes");
  CHECK_THROWS(copy_to_card({card.data(), &placement, 0}, view, {host.data(), HostType::F16, {1}},
                            Numerics::DLFLOAT16, pool()),
               std::invalid_argument, "one size and two strides");
  CHECK(!has_conversion(HostType::I64, DataFormat::SEN169_FP16));
  CHECK(!has_conversion(HostType::RAW, DataFormat::SENINT4));
  CHECK(!has_conversion(HostType::RAW, DataFormat::INVALID));
  CHECK(!has_conversion(HostType::F32, DataFormat::IEEE_INT32));
}
