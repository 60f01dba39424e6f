#include "hooks/dtypes.h"

#include <c10/util/Exception.h>

namespace spyre {

using at::ScalarType;
using card::DataFormat;
using card::HostType;

card::DataFormat device_format(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Bool:
      return DataFormat::SEN169_FP16;
    case ScalarType::Float:
      return DataFormat::IEEE_FP32;
    case ScalarType::Int:
    case ScalarType::Long:
      return DataFormat::IEEE_INT32;
    case ScalarType::Short:
      return DataFormat::SENINT16;
    case ScalarType::Char:
    case ScalarType::QInt8:
      return DataFormat::SENINT8;
    case ScalarType::Byte:
    case ScalarType::QUInt8:
      return DataFormat::SENUINT32;
    case ScalarType::Float8_e4m3fn:
      return DataFormat::SEN143_FP8;
    case ScalarType::Float8_e5m2fnuz:
      return DataFormat::SEN152_FP8;
    case ScalarType::QUInt4x2:
    case ScalarType::QUInt2x4:
      return DataFormat::SENUINT2;
    default:
      return DataFormat::INVALID;
  }
}

card::DataFormat checked_device_format(ScalarType dtype) {
  auto format = device_format(dtype);
  TORCH_CHECK(format != DataFormat::INVALID, "Spyre backend does not support dtype ",
              c10::toString(dtype));
  return format;
}

card::HostType host_type(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Half:
      return HostType::F16;
    case ScalarType::BFloat16:
      return HostType::BF16;
    case ScalarType::Float:
      return HostType::F32;
    case ScalarType::Bool:
      return HostType::BOOL;
    case ScalarType::Byte:
      return HostType::U8;
    case ScalarType::Char:
      return HostType::I8;
    case ScalarType::Short:
      return HostType::I16;
    case ScalarType::Int:
      return HostType::I32;
    case ScalarType::Long:
      return HostType::I64;
    default:
      return HostType::RAW;
  }
}

bool converts_directly(ScalarType host, ScalarType device) {
  if (host == device) return true;
  auto is_float = [](ScalarType t) {
    return t == ScalarType::Half || t == ScalarType::BFloat16 || t == ScalarType::Float;
  };
  return is_float(host) && is_float(device);
}

}  // namespace spyre
