// The default layout rule by its documented examples, and what check_placement refuses.
#include "memory/layout.h"

#include <stdexcept>

#include "support/check.h"

using namespace spyre::card;

namespace {

constexpr DataFormat kFp16 = DataFormat::SEN169_FP16;

Dims row_major(const Dims& sizes) {
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  return strides;
}

void check_layout(const StickLayout& layout, const Dims& device_size, const Dims& stride_map) {
  CHECK_EQ(layout.device_size, device_size);
  CHECK_EQ(layout.stride_map, stride_map);
}

void check_default(const Dims& sizes, const Dims& device_size, const Dims& stride_map,
                   DataFormat format = kFp16) {
  const StickLayout layout = make_layout(sizes, format);
  check_layout(layout, device_size, stride_map);
  CHECK(layout.format == format);
  CHECK(layout.arrangement == ElementArrangement::STANDARD);
  check_placement({layout, sizes, row_major(sizes)});
}

void check_ordered(const Dims& sizes, const Dims& order, const Dims& device_size,
                   const Dims& stride_map) {
  const StickLayout layout = make_layout(sizes, row_major(sizes), kFp16, order);
  check_layout(layout, device_size, stride_map);
  check_placement({layout, sizes, row_major(sizes)});
}

Placement raw(const Dims& sizes, const Dims& strides, const Dims& device_size,
              const Dims& stride_map) {
  return {{device_size, stride_map, kFp16}, sizes, strides};
}

}  // namespace

TEST(default_layouts_are_those_of_the_reference) {
  check_default({}, {1, 64}, {-1, -1});
  check_default({120}, {2, 64}, {64, 1});
  check_default({128}, {2, 64}, {64, 1});
  check_default({512, 240}, {4, 512, 64}, {64, 240, 1});
  check_default({1, 100}, {2, 1, 64}, {64, -1, 1});
  check_default({4, 1}, {1, 4, 64}, {-1, 1, -1});
  check_default({512, 8, 240}, {8, 4, 512, 64}, {240, 64, 1920, 1});
  check_default({1, 8, 256}, {8, 4, 1, 64}, {256, 64, -1, 1});
  check_default({2, 3, 5, 100}, {3, 5, 2, 2, 64}, {500, 100, 64, 1500, 1});
  check_default({2, 3, 4, 5, 100}, {3, 4, 5, 2, 2, 64}, {2000, 500, 100, 64, 6000, 1});
  check_default({512, 256, 1}, {256, 1, 512, 64}, {1, -1, 256, -1});
  check_default({128, 256}, {8, 128, 32}, {32, 256, 1}, DataFormat::IEEE_FP32);
  check_default({128, 256}, {8, 128, 32}, {32, 256, 1}, DataFormat::IEEE_INT32);
  check_default({128, 256}, {4, 128, 64}, {64, 256, 1});
}

TEST(dim_orders_give_the_layouts_of_the_reference) {
  check_ordered({512, 256}, {1, 0}, {8, 256, 64}, {16384, 1, 256});
  check_ordered({512, 8, 256}, {0, 2, 1}, {256, 1, 512, 64}, {1, 16384, 2048, 256});
  check_ordered({512, 8, 256}, {1, 0, 2}, {512, 4, 8, 64}, {2048, 64, 256, 1});
  check_ordered({512, 8, 256}, {1, 2, 0}, {256, 8, 8, 64}, {1, 131072, 256, 2048});
  check_ordered({512, 8, 256}, {2, 0, 1}, {512, 1, 256, 64}, {2048, 16384, 1, 256});
  check_ordered({512, 8, 256}, {2, 1, 0}, {8, 8, 256, 64}, {256, 131072, 1, 2048});
  check_ordered({512, 256}, {0, 1, -1}, {256, 1, 512, 64}, {1, -1, 256, -1});
  check_ordered({512, 256, 1}, {0, 1, 2}, {256, 1, 512, 64}, {1, -1, 256, -1});
}

TEST(strides_of_the_host_go_into_the_stride_map) {
  check_layout(make_layout({512, 240}, {1, 512}, kFp16, {0, 1}), {4, 512, 64}, {32768, 1, 512});
  check_layout(make_layout({40, 60}, {0, 1}, kFp16, {0, 1}), {1, 40, 64}, {64, 0, 1});
  check_layout(make_layout({40, 60}, {100, 1}, kFp16, {0, 1}), {1, 40, 64}, {64, 100, 1});
}

TEST(the_arrangement_and_format_are_kept) {
  const StickLayout layout = make_layout({4, 64}, {64, 1}, DataFormat::IEEE_FP32, {0, 1},
                                         ElementArrangement::DL16_TO_FP32);
  CHECK(layout.arrangement == ElementArrangement::DL16_TO_FP32);
  CHECK(layout.format == DataFormat::IEEE_FP32);
  CHECK(!(layout == make_layout({4, 64}, DataFormat::IEEE_FP32)));
  CHECK(make_layout({4, 64}, kFp16) == make_layout({4, 64}, {64, 1}, kFp16, {0, 1}));
}

TEST(bytes_and_elements_count_whole_sticks) {
  const StickLayout layout = make_layout({512, 240}, kFp16);
  CHECK_EQ(layout.bytes(), 128 * 4 * 512);
  CHECK_EQ(layout.num_elements(), 4 * 512 * 64);
  CHECK_EQ(make_layout({}, kFp16).bytes(), 128);
  CHECK_EQ(make_layout({10, 0}, kFp16).bytes(), 0);
}

TEST(the_text_is_a_constructor_call) {
  CHECK_EQ(make_layout({512, 240}, kFp16).repr(),
           std::string("SpyreTensorLayout(device_size=[4, 512, 64], stride_map =[64, 240, 1], "
                       "device_dtype=DataFormats.SEN169_FP16)"));
  StickLayout widened = make_layout({64}, DataFormat::IEEE_FP32);
  widened.arrangement = ElementArrangement::DL16_TO_FP32;
  CHECK_EQ(widened.repr(),
           std::string("SpyreTensorLayout(device_size=[2, 32], stride_map =[32, 1], "
                       "device_dtype=DataFormats.IEEE_FP32, "
                       "element_arrangement=ElementArrangement.DL16_TO_FP32)"));
}

TEST(impossible_layouts_are_refused_with_the_documented_texts) {
  const Dims seven(7, 2), order = {0, 1, 2, 3, 4, 5, 6};
  CHECK_THROWS(make_layout(seven, kFp16), std::invalid_argument, "Unsupported tensor rank: 7");
  CHECK_THROWS(make_layout({2}, {1}, kFp16, {}), std::invalid_argument,
               "Unsupported tensor rank: 0");
  const char* incompatible = "Incompatible host_size and dim_order";
  CHECK_THROWS(make_layout({2, 3}, {3, 1}, kFp16, {0}), std::invalid_argument, incompatible);
  CHECK_THROWS(make_layout({2, 3}, {3, 1}, kFp16, {0, 0}), std::invalid_argument, incompatible);
  CHECK_THROWS(make_layout({2, 3}, {3, 1}, kFp16, {0, 2}), std::invalid_argument, incompatible);
  CHECK_THROWS(make_layout({2, 3}, {3, 1}, kFp16, {0, -1}), std::invalid_argument, incompatible);
  CHECK_THROWS(make_layout({2, 3}, {3, 1}, kFp16, {0, 1, 2}), std::invalid_argument, incompatible);
  CHECK_THROWS(make_layout({2, 3}, {3}, kFp16, {0, 1}), std::invalid_argument, "host_strides");
  CHECK_THROWS(make_layout({2, 3}, DataFormat::INVALID), std::invalid_argument, "INVALID");
}

TEST(the_raw_layouts_of_the_reference_are_accepted) {
  check_placement(raw({40, 60}, {60, 1}, {1, 512, 64}, {64, 60, 1}));
  check_placement(raw({60}, {1}, {1, 512, 64}, {64, 0, 1}));
  check_placement(raw({40, 60}, {60, 1}, {38, 64}, {64, 1}));
  check_placement(raw({4800}, {1}, {3, 2, 14, 64}, {120, 64, 360, 1}));
  check_placement(raw({40, 60}, {60, 1}, {24, 1, 2, 64}, {60, 64, 1440, 1}));
  check_placement(raw({40, 60}, {1, 40}, {1, 40, 64}, {2560, 1, 40}));
  check_placement(raw({4, 60}, {100, 1}, {1, 4, 64}, {64, 100, 1}));
  check_placement(raw({40, 60}, {60, 1}, {3, 40, 64}, {64, 60, 1}));
  check_placement(raw({0, 60}, {60, 1}, {1, 0, 64}, {64, 60, 1}));
}

TEST(layouts_that_are_one_too_small_are_refused) {
  const char* text = "is too small for sizes";
  CHECK_THROWS(check_placement(raw({40, 60}, {60, 1}, {37, 64}, {64, 1})), std::invalid_argument,
               text);
  CHECK_THROWS(check_placement(raw({40, 60}, {60, 1}, {1, 39, 64}, {64, 60, 1})),
               std::invalid_argument, text);
  CHECK_THROWS(check_placement(raw({4800}, {1}, {3, 2, 13, 64}, {120, 64, 360, 1})),
               std::invalid_argument, text);
  CHECK_THROWS(check_placement(raw({4800}, {1}, {2, 2, 14, 64}, {120, 64, 360, 1})),
               std::invalid_argument, text);
  CHECK_THROWS(check_placement(raw({4800}, {1}, {3, 1, 14, 64}, {120, 64, 360, 1})),
               std::invalid_argument, text);
  CHECK_THROWS(check_placement(raw({40, 65}, {65, 1}, {1, 40, 64}, {64, 65, 1})),
               std::invalid_argument, text);
  CHECK_THROWS(check_placement(raw({2}, {1}, {1, 64}, {-1, -1})), std::invalid_argument, text);
  // Elements between the strides of the axes have no place either.
  CHECK_THROWS(check_placement(raw({40, 60}, {60, 1}, {1, 60, 64}, {64, 2, 120})),
               std::invalid_argument, text);
  // A widened row of 64 columns needs both sticks of a pair.
  StickLayout single = {
      {1, 4, 32}, {32, 64, 1}, DataFormat::IEEE_FP32, ElementArrangement::DL16_TO_FP32};
  CHECK_THROWS(check_placement({single, {4, 20}, {20, 1}}), std::invalid_argument, text);
  StickLayout three = {
      {3, 4, 32}, {32, 96, 1}, DataFormat::IEEE_FP32, ElementArrangement::DL16_TO_FP32};
  CHECK_THROWS(check_placement({three, {4, 96}, {96, 1}}), std::invalid_argument, text);
}

TEST(malformed_layouts_are_refused_with_a_reason) {
  CHECK_THROWS(check_placement(raw({60}, {1}, {1, 64}, {1})), std::invalid_argument,
               "differ in length");
  CHECK_THROWS(check_placement(raw({60}, {1}, {}, {})), std::invalid_argument, "one stick");
  CHECK_THROWS(check_placement(raw({60}, {1}, {2, 32}, {32, 1})), std::invalid_argument,
               "must be one stick: 64 elements of SEN169_FP16");
  CHECK_THROWS(check_placement(raw({60}, {1}, {0, 64}, {64, 1})), std::invalid_argument,
               "not positive");
  CHECK_THROWS(check_placement(raw({60}, {1}, {-1, 64}, {64, 1})), std::invalid_argument,
               "not positive");
  CHECK_THROWS(check_placement(raw({60}, {1}, {1, 64}, {-2, 1})), std::invalid_argument,
               "stride_map [-2, 1] has -2");
  CHECK_THROWS(check_placement(raw({60}, {1}, {5, 5, 64}, {64, 64, 1})), std::invalid_argument,
               "same stride 64");
  CHECK_THROWS(check_placement(raw({60, 2}, {1}, {1, 64}, {64, 1})), std::invalid_argument,
               "differ in length");
  CHECK_THROWS(check_placement(raw({-60}, {1}, {1, 64}, {64, 1})), std::invalid_argument,
               "negative");
  CHECK_THROWS(check_placement(raw({3, 3}, {1, 1}, {1, 3, 64}, {64, 3, 1})), std::invalid_argument,
               "overlap or interleave");
  CHECK_THROWS(check_placement(raw({2, 3}, {6, 4}, {1, 2, 64}, {256, 6, 4})), std::invalid_argument,
               "overlap or interleave");
  Placement invalid = raw({60}, {1}, {1, 64}, {64, 1});
  invalid.layout.format = DataFormat::INVALID;
  CHECK_THROWS(check_placement(invalid), std::invalid_argument, "no tensor form");
}
