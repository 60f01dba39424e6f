// The table of element formats, as documented.
#include "numerics/formats.h"

#include <stdexcept>
#include <string>

#include "support/check.h"

using namespace spyre::card;

namespace {

struct Row {
  DataFormat format;
  const char* name;
  int value;
  int64_t elems;
};

constexpr Row kRows[] = {
    {DataFormat::SEN169_FP16, "SEN169_FP16", 0, 64},
    {DataFormat::IEEE_FP32, "IEEE_FP32", 1, 32},
    {DataFormat::INVALID, "INVALID", 2, 0},
    {DataFormat::SEN143_FP8, "SEN143_FP8", 3, 128},
    {DataFormat::SEN152_FP8, "SEN152_FP8", 4, 128},
    {DataFormat::SEN153_FP9, "SEN153_FP9", 5, 0},
    {DataFormat::SENINT2, "SENINT2", 6, 512},
    {DataFormat::SENINT4, "SENINT4", 7, 256},
    {DataFormat::SENINT8, "SENINT8", 8, 128},
    {DataFormat::SENINT16, "SENINT16", 9, 64},
    {DataFormat::SENINT24, "SENINT24", 10, 0},
    {DataFormat::IEEE_INT64, "IEEE_INT64", 11, 16},
    {DataFormat::IEEE_INT32, "IEEE_INT32", 12, 32},
    {DataFormat::SENUINT32, "SENUINT32", 13, 32},
    {DataFormat::SENUINT2, "SENUINT2", 14, 512},
    {DataFormat::IEEE_FP16, "IEEE_FP16", 15, 64},
    {DataFormat::BOOL, "BOOL", 16, 128},
    {DataFormat::BFLOAT16, "BFLOAT16", 17, 64},
    {DataFormat::SEN18F_FP24, "SEN18F_FP24", 18, 0},
};

}  // namespace

TEST(every_format_has_its_documented_value_name_and_stick_size) {
  CHECK_EQ(std::size(kRows), kNumDataFormats);
  for (const Row& row : kRows) {
    CHECK_EQ(static_cast<int>(row.format), row.value);
    CHECK_EQ(std::string(name(row.format)), row.name);
    CHECK_EQ(elems_per_stick(row.format), row.elems);
  }
}

TEST(bytes_of_an_element_follow_from_the_stick) {
  CHECK_EQ(bytes_per_elem(DataFormat::SEN169_FP16), 2);
  CHECK_EQ(bytes_per_elem(DataFormat::IEEE_FP32), 4);
  CHECK_EQ(bytes_per_elem(DataFormat::SEN143_FP8), 1);
  CHECK_EQ(bytes_per_elem(DataFormat::IEEE_INT64), 8);
  for (DataFormat format : {DataFormat::SENINT2, DataFormat::SENINT4, DataFormat::SENUINT2}) {
    CHECK_THROWS(bytes_per_elem(format), std::invalid_argument, "sub-byte dataformat");
  }
  for (DataFormat format : {DataFormat::INVALID, DataFormat::SEN153_FP9, DataFormat::SENINT24,
                            DataFormat::SEN18F_FP24}) {
    CHECK_THROWS(bytes_per_elem(format), std::invalid_argument, name(format));
  }
}

TEST(host_types_have_the_sizes_of_their_torch_dtypes) {
  CHECK_EQ(bytes_of(HostType::BOOL), 1);
  CHECK_EQ(bytes_of(HostType::U8), 1);
  CHECK_EQ(bytes_of(HostType::I8), 1);
  CHECK_EQ(bytes_of(HostType::F16), 2);
  CHECK_EQ(bytes_of(HostType::BF16), 2);
  CHECK_EQ(bytes_of(HostType::I16), 2);
  CHECK_EQ(bytes_of(HostType::F32), 4);
  CHECK_EQ(bytes_of(HostType::I32), 4);
  CHECK_EQ(bytes_of(HostType::I64), 8);
  CHECK_EQ(bytes_of(HostType::RAW), 0);
  CHECK_EQ(std::string(name(HostType::BF16)), "BF16");
}

TEST(arrangements_have_their_documented_names) {
  CHECK_EQ(std::string(name(ElementArrangement::STANDARD)), "STANDARD");
  CHECK_EQ(std::string(name(ElementArrangement::DL16_TO_FP32)), "DL16_TO_FP32");
  CHECK_EQ(std::string(name(ElementArrangement::QFP8CH)), "QFP8CH");
  CHECK_EQ(std::string(name(ElementArrangement::EXX2)), "EXX2");
}

TEST(values_outside_the_enumerations_are_refused) {
  CHECK_THROWS(name(static_cast<DataFormat>(19)), std::invalid_argument, "19");
  CHECK_THROWS(elems_per_stick(static_cast<DataFormat>(-1)), std::invalid_argument, "-1");
  CHECK_THROWS(name(static_cast<ElementArrangement>(4)), std::invalid_argument, "4");
  CHECK_THROWS(bytes_of(static_cast<HostType>(50)), std::invalid_argument, "50");
}
