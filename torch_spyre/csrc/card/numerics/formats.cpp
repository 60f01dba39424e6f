#include "numerics/formats.h"

#include <stdexcept>
#include <string>

namespace spyre::card {
namespace {

struct FormatFacts {
  const char* name;
  int64_t elems_per_stick;
};

// Indexed by the value of DataFormat.
constexpr FormatFacts kFormats[kNumDataFormats] = {
    {"SEN169_FP16", 64}, {"IEEE_FP32", 32}, {"INVALID", 0},     {"SEN143_FP8", 128},
    {"SEN152_FP8", 128}, {"SEN153_FP9", 0}, {"SENINT2", 512},   {"SENINT4", 256},
    {"SENINT8", 128},    {"SENINT16", 64},  {"SENINT24", 0},    {"IEEE_INT64", 16},
    {"IEEE_INT32", 32},  {"SENUINT32", 32}, {"SENUINT2", 512},  {"IEEE_FP16", 64},
    {"BOOL", 128},       {"BFLOAT16", 64},  {"SEN18F_FP24", 0},
};

const FormatFacts& facts(DataFormat format) {
  const int index = static_cast<int>(format);
  if (index < 0 || index >= kNumDataFormats) {
    throw std::invalid_argument("no such DataFormats value: " + std::to_string(index));
  }
  return kFormats[index];
}

}  // namespace

const char* name(DataFormat format) { return facts(format).name; }

const char* name(ElementArrangement arrangement) {
  switch (arrangement) {
    case ElementArrangement::STANDARD:
      return "STANDARD";
    case ElementArrangement::DL16_TO_FP32:
      return "DL16_TO_FP32";
    case ElementArrangement::QFP8CH:
      return "QFP8CH";
    case ElementArrangement::EXX2:
      return "EXX2";
  }
  throw std::invalid_argument("no such ElementArrangement value: " +
                              std::to_string(static_cast<int>(arrangement)));
}

const char* name(HostType type) {
  switch (type) {
    case HostType::F16:
      return "F16";
    case HostType::BF16:
      return "BF16";
    case HostType::F32:
      return "F32";
    case HostType::BOOL:
      return "BOOL";
    case HostType::U8:
      return "U8";
    case HostType::I8:
      return "I8";
    case HostType::I16:
      return "I16";
    case HostType::I32:
      return "I32";
    case HostType::I64:
      return "I64";
    case HostType::RAW:
      return "RAW";
  }
  throw std::invalid_argument("no such HostType value: " + std::to_string(static_cast<int>(type)));
}

int64_t elems_per_stick(DataFormat format) { return facts(format).elems_per_stick; }

int64_t bytes_per_elem(DataFormat format) {
  const int64_t elems = elems_per_stick(format);
  if (elems == 0) {
    throw std::invalid_argument(std::string("DataFormats.") + name(format) + " has no tensor form");
  }
  if (elems > kStickBytes) throw std::invalid_argument("sub-byte dataformat");
  return kStickBytes / elems;
}

int64_t bytes_of(HostType type) {
  switch (type) {
    case HostType::BOOL:
    case HostType::U8:
    case HostType::I8:
      return 1;
    case HostType::F16:
    case HostType::BF16:
    case HostType::I16:
      return 2;
    case HostType::F32:
    case HostType::I32:
      return 4;
    case HostType::I64:
      return 8;
    case HostType::RAW:
      return 0;
  }
  throw std::invalid_argument("no such HostType value: " + std::to_string(static_cast<int>(type)));
}

}  // namespace spyre::card
