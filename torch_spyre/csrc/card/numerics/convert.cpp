#include "numerics/convert.h"

#include <stdexcept>
#include <string>

namespace spyre::card {
namespace {

// Where the bits of the host type are those of the device format.
bool same_bits(HostType type, DataFormat format) {
  switch (format) {
    case DataFormat::IEEE_FP32:
      return type == HostType::F32;
    case DataFormat::IEEE_INT32:
      return type == HostType::I32;
    case DataFormat::IEEE_INT64:
      return type == HostType::I64;
    case DataFormat::SENINT16:
      return type == HostType::I16;
    case DataFormat::SENINT8:
      return type == HostType::I8;
    case DataFormat::SEN143_FP8:
    case DataFormat::SEN152_FP8:
      return type == HostType::U8 || type == HostType::I8;
    case DataFormat::IEEE_FP16:
      return type == HostType::F16;
    case DataFormat::BFLOAT16:
      return type == HostType::BF16;
    case DataFormat::BOOL:
      return type == HostType::BOOL;
    default:
      return false;
  }
}

std::optional<Conversion> to_dlfloat16(HostType type) {
  switch (type) {
    case HostType::F32:
      return Conversion::F32_DLF16;
    case HostType::F16:
      return Conversion::F16_DLF16;
    case HostType::BF16:
      return Conversion::BF16_DLF16;
    case HostType::BOOL:
      return Conversion::BOOL_DLF16;
    default:
      return std::nullopt;
  }
}

std::optional<Conversion> to_half(HostType type) {
  switch (type) {
    case HostType::F32:
      return Conversion::F32_HALF;
    case HostType::F16:
      return Conversion::COPY_2;
    case HostType::BF16:
      return Conversion::BF16_HALF;
    case HostType::BOOL:
      return Conversion::BOOL_HALF;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Conversion> find_conversion(HostType type, DataFormat format, Numerics numerics) {
  const int64_t elems = elems_per_stick(format);
  if (elems == 0 || elems > kStickBytes) return std::nullopt;
  if (type == HostType::RAW || same_bits(type, format)) return copy_of(bytes_per_elem(format));
  switch (format) {
    case DataFormat::SEN169_FP16:
      return numerics == Numerics::DLFLOAT16 ? to_dlfloat16(type) : to_half(type);
    case DataFormat::IEEE_FP32:
      if (type == HostType::F16) return Conversion::F16_F32;
      if (type == HostType::BF16) return Conversion::BF16_F32;
      return std::nullopt;
    case DataFormat::IEEE_INT32:
      return type == HostType::I64 ? std::optional(Conversion::I64_I32) : std::nullopt;
    case DataFormat::SENUINT32:
      return type == HostType::U8 ? std::optional(Conversion::U8_U32) : std::nullopt;
    default:
      return std::nullopt;
  }
}

Conversion copy_of(int64_t elem_bytes) {
  switch (elem_bytes) {
    case 1:
      return Conversion::COPY_1;
    case 2:
      return Conversion::COPY_2;
    case 4:
      return Conversion::COPY_4;
    case 8:
      return Conversion::COPY_8;
    case 16:
      return Conversion::COPY_16;
  }
  throw std::invalid_argument("elements of " + std::to_string(elem_bytes) +
                              " bytes cannot be copied: 1, 2, 4, 8 and 16 are supported");
}

#if defined(__x86_64__) || defined(__i386__)

bool has_simd(Simd simd) {
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                           __builtin_cpu_supports("f16c");
  static const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return simd == Simd::PORTABLE || (simd == Simd::AVX2 && avx2) || (simd == Simd::AVX512 && avx512);
}

const ConvertTable& convert_table(Simd simd) {
  if (!has_simd(simd)) {
    throw std::invalid_argument(simd == Simd::AVX512 ? "this processor has no AVX-512 F, BW, VL, DQ"
                                                     : "this processor has no AVX2, FMA and F16C");
  }
  return simd == Simd::PORTABLE ? simd_portable::kConvertTable : simd_avx2::kConvertTable;
}

#else

bool has_simd(Simd simd) { return simd == Simd::PORTABLE; }

const ConvertTable& convert_table(Simd simd) {
  if (!has_simd(simd)) throw std::invalid_argument("AVX2 and AVX-512 exist on x86 only");
  return simd_portable::kConvertTable;
}

#endif

Simd best_simd() {
  static const Simd best = has_simd(Simd::AVX512) ? Simd::AVX512
                           : has_simd(Simd::AVX2) ? Simd::AVX2
                                                  : Simd::PORTABLE;
  return best;
}

void encode_dlfloat16(const float* values, uint16_t* codes, int64_t count, Simd simd) {
  convert_table(simd).to_card[static_cast<int>(Conversion::F32_DLF16)](
      reinterpret_cast<std::byte*>(codes), 0, reinterpret_cast<const std::byte*>(values), 0, 1,
      count, Stores::CACHED);
}

void decode_dlfloat16(const uint16_t* codes, float* values, int64_t count, Simd simd) {
  convert_table(simd).from_card[static_cast<int>(Conversion::F32_DLF16)](
      reinterpret_cast<std::byte*>(values), 0, reinterpret_cast<const std::byte*>(codes), 0, 1,
      count, Stores::CACHED);
}

}  // namespace spyre::card
