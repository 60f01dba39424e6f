#include "tile/operand.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "numerics/convert.h"
#include "numerics/dlfloat16.h"

namespace spyre::card {
namespace {

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void write(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

// 16-bit formats go through the conversions of DMA, so that there is one definition of each.
float convert_from(Conversion conversion, bool to_card, const std::byte* from) {
  const ConvertTable& table = convert_table(best_simd());
  const auto& rows = to_card ? table.to_card : table.from_card;
  float value;
  rows[static_cast<int>(conversion)](reinterpret_cast<std::byte*>(&value), 0, from, 0, 1, 1,
                                     Stores::CACHED);
  return value;
}
void convert_to(Conversion conversion, bool to_card, uint32_t lane, std::byte* to) {
  const ConvertTable& table = convert_table(best_simd());
  const auto& rows = to_card ? table.to_card : table.from_card;
  rows[static_cast<int>(conversion)](to, 0, reinterpret_cast<const std::byte*>(&lane), 0, 1, 1,
                                     Stores::CACHED);
}

// e4m3: bias 7, no infinity, 0x7f is NaN, the largest number is 448.
float decode_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  float value;
  if ((code & 0x7f) == 0x7f) {
    value = std::bit_cast<float>(0x7fc00000u);
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -9);
  } else {
    value = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  }
  return code & 0x80 ? -value : value;
}

// Nearest, ties to even; what rounds beyond 448 is NaN.
uint8_t encode_e4m3(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (!(magnitude < 480.0f)) return sign | 0x7f;
  if (magnitude == 0) return sign;
  // Of the leading bit, or that of subnormals.
  const int exponent = std::max(std::ilogb(magnitude), -6);
  const int units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  return sign | static_cast<uint8_t>(((exponent + 6) << 3) + units);
}

bool is_exx2(OperandForm form) {
  return form == OperandForm::EXX2_MEAN || form == OperandForm::EXX2_VARIANCE ||
         form == OperandForm::EXX2_STORE;
}

constexpr int64_t kExx2Mean = 8, kExx2Variance = 12;  // bytes in a stick of a 16-bit format

}  // namespace

bool is_tile_format(DataFormat format) {
  switch (format) {
    case DataFormat::SEN169_FP16:
    case DataFormat::IEEE_FP32:
    case DataFormat::SEN143_FP8:
    case DataFormat::SENINT8:
    case DataFormat::IEEE_INT32:
    case DataFormat::SENUINT32:
    case DataFormat::IEEE_FP16:
    case DataFormat::BFLOAT16:
      return true;
    default:
      return false;
  }
}

TileOperand parse_tile_operand(WordReader& reader, const StepHead& head, int dims, int lanes) {
  TileOperand operand;
  operand.format = reader.format();
  if (!is_tile_format(operand.format)) {
    reader.fail(std::string("operands cannot have the format ") + name(operand.format));
  }
  operand.form = static_cast<OperandForm>(reader.next(0, 5, "the form of an operand"));
  if (elems_per_stick(operand.format) > lanes) {
    reader.fail("a stick of " + std::string(name(operand.format)) + " has more elements than the " +
                std::to_string(lanes) + " lanes of a group");
  }
  const bool wide = operand.format == DataFormat::IEEE_FP32;
  const bool half = operand.format == DataFormat::SEN169_FP16 ||
                    operand.format == DataFormat::IEEE_FP16 ||
                    operand.format == DataFormat::BFLOAT16;
  if (is_exx2(operand.form) && !wide && !half) {
    reader.fail(std::string("no EXX2 stick has the format ") + name(operand.format));
  }
  operand.strides = reader.list(dims);
  operand.sub_stride = reader.next();
  operand.limits = reader.list(head.cores);
  for (int64_t limit : operand.limits) {
    if (limit < -1) reader.fail("a limit is " + std::to_string(limit));
  }
  operand.address = parse_address(reader, head);
  return operand;
}

int sticks_per_group(const TileOperand& operand, int lanes) {
  if (operand.form != OperandForm::VECTOR) return 1;
  return lanes / static_cast<int>(elems_per_stick(operand.format));
}

bool is_unlimited(const TileOperand& operand) {
  return std::all_of(operand.limits.begin(), operand.limits.end(),
                     [](int64_t limit) { return limit < 0; });
}

int64_t sticks_left(const TileOperand& operand, int core, int64_t group, int lanes) {
  const int64_t limit = operand.limits[core];
  if (limit < 0) return kAllSticks;
  return std::max<int64_t>(0, limit - group * sticks_per_group(operand, lanes));
}

void load_group(const TileOperand& operand, const std::byte* at, int64_t sticks_left, int lanes,
                Numerics numerics, uint32_t* out) {
  if (operand.form != OperandForm::VECTOR) {
    std::fill_n(out, lanes, sticks_left > 0 ? load_splat(operand, at, numerics) : 0);
    return;
  }
  const int per_stick = static_cast<int>(elems_per_stick(operand.format));
  const int64_t bytes = kStickBytes / per_stick;
  for (int first = 0; first < lanes; first += per_stick, at += operand.sub_stride) {
    for (int i = 0; i < per_stick; i++) {
      out[first + i] = sticks_left > 0 ? load_element(operand.format, numerics, at + i * bytes) : 0;
    }
    sticks_left--;
  }
}

void store_group(const TileOperand& operand, std::byte* at, int64_t sticks_left, int lanes,
                 Numerics numerics, const uint32_t* in, const uint32_t* second) {
  const int per_stick = static_cast<int>(elems_per_stick(operand.format));
  const int64_t bytes = kStickBytes / per_stick;
  if (operand.form == OperandForm::VECTOR) {
    for (int first = 0; first < lanes; first += per_stick, at += operand.sub_stride) {
      if (sticks_left-- <= 0) return;
      for (int i = 0; i < per_stick; i++) {
        store_element(operand.format, numerics, in[first + i], at + i * bytes);
      }
    }
    return;
  }
  if (sticks_left <= 0) return;
  if (operand.form == OperandForm::SPLAT_STORE) {
    return store_splat(operand, at, sticks_left, lanes, numerics, in[0]);
  }
  std::memset(at, 0, kStickBytes);  // an EXX2 stick
  store_element(operand.format, numerics, in[0], at);
  const bool wide = operand.format == DataFormat::IEEE_FP32;
  if (!wide) write(at + kExx2Mean, in[0]);
  write(at + (wide ? 4 : kExx2Variance), second[0]);
}

void store_splat(const TileOperand& operand, std::byte* at, int64_t sticks_left, int lanes,
                 Numerics numerics, uint32_t lane) {
  const int64_t bytes = kStickBytes / elems_per_stick(operand.format);
  const int sticks = sticks_per_group(operand, lanes);
  for (int i = 0; i < sticks && i < sticks_left; i++, at += operand.sub_stride) {
    store_element(operand.format, numerics, lane, at);
    for (int64_t filled = bytes; filled < kStickBytes; filled *= 2) {
      std::memcpy(at + filled, at, filled);
    }
  }
}

uint32_t load_splat(const TileOperand& operand, const std::byte* at, Numerics numerics) {
  if (operand.form == OperandForm::SPLAT) return load_element(operand.format, numerics, at);
  const bool variance = operand.form == OperandForm::EXX2_VARIANCE;
  if (operand.format == DataFormat::IEEE_FP32) return read<uint32_t>(at + (variance ? 4 : 0));
  return read<uint32_t>(at + (variance ? kExx2Variance : kExx2Mean));
}

uint32_t load_element(DataFormat format, Numerics numerics, const std::byte* from) {
  switch (format) {
    case DataFormat::SEN169_FP16:
      if (numerics == Numerics::DLFLOAT16) {
        return std::bit_cast<uint32_t>(decode_dlfloat16(read<uint16_t>(from)));
      }
      [[fallthrough]];
    case DataFormat::IEEE_FP16:
      return std::bit_cast<uint32_t>(convert_from(Conversion::F32_HALF, false, from));
    case DataFormat::BFLOAT16:
      return std::bit_cast<uint32_t>(convert_from(Conversion::BF16_F32, true, from));
    case DataFormat::SEN143_FP8:
      return std::bit_cast<uint32_t>(decode_e4m3(read<uint8_t>(from)));
    case DataFormat::SENINT8:
      return static_cast<uint32_t>(int32_t{read<int8_t>(from)});
    default:
      return read<uint32_t>(from);
  }
}

void store_element(DataFormat format, Numerics numerics, uint32_t lane, std::byte* to) {
  switch (format) {
    case DataFormat::SEN169_FP16:
      if (numerics == Numerics::DLFLOAT16) {
        return write(to, encode_dlfloat16(std::bit_cast<float>(lane)));
      }
      [[fallthrough]];
    case DataFormat::IEEE_FP16:
      return convert_to(Conversion::F32_HALF, true, lane, to);
    case DataFormat::BFLOAT16:
      return convert_to(Conversion::BF16_F32, false, lane, to);
    case DataFormat::SEN143_FP8:
      return write(to, encode_e4m3(std::bit_cast<float>(lane)));
    case DataFormat::SENINT8:
      return write(to, static_cast<int8_t>(lane));
    default:
      return write(to, lane);
  }
}

}  // namespace spyre::card
