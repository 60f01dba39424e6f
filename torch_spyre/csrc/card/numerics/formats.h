// The element formats of the card and of the host, and the facts about them.
//
// In: nothing. Out: for a DataFormat its name, its size and how many elements make a stick;
// for a HostType its size. Example: elems_per_stick(DataFormat::SEN169_FP16) == 64.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spyre::card {

constexpr int64_t kStickBytes = 128;

// Values are those of the documented enumeration and are stored in artefacts: never renumber.
enum class DataFormat : int8_t {
  SEN169_FP16 = 0,  // DLFloat16: 1 sign, 6 exponent, 9 fraction bits
  IEEE_FP32 = 1,
  INVALID = 2,
  SEN143_FP8 = 3,
  SEN152_FP8 = 4,
  SEN153_FP9 = 5,
  SENINT2 = 6,
  SENINT4 = 7,
  SENINT8 = 8,
  SENINT16 = 9,
  SENINT24 = 10,
  IEEE_INT64 = 11,
  IEEE_INT32 = 12,
  SENUINT32 = 13,
  SENUINT2 = 14,
  IEEE_FP16 = 15,
  BOOL = 16,
  BFLOAT16 = 17,
  SEN18F_FP24 = 18,
};
constexpr int kNumDataFormats = 19;

// Order of the elements inside a stick; everything but STANDARD is produced by on-card casts.
enum class ElementArrangement : int8_t { STANDARD = 0, DL16_TO_FP32 = 1, QFP8CH = 2, EXX2 = 3 };

// Element types of host memory that DMA converts from and to.
enum class HostType : int8_t {
  F16,
  BF16,
  F32,
  BOOL,
  U8,
  I8,
  I16,
  I32,
  I64,
  RAW,  // the bytes of the device element, unconverted
};

// What a 16-bit floating point element means on the card. IEEE is for bisecting numerical
// differences.
enum class Numerics : int8_t { DLFLOAT16, IEEE };

const char* name(DataFormat format);
const char* name(ElementArrangement arrangement);
const char* name(HostType type);
// Elements in a 128-byte stick; 0 for formats that have no tensor form (INVALID, FP9, FP24, INT24).
int64_t elems_per_stick(DataFormat format);
// Bytes of one element; throws std::invalid_argument("sub-byte dataformat") when several share a
// byte.
int64_t bytes_per_elem(DataFormat format);
int64_t bytes_of(HostType type);  // RAW: 0, it follows the device

}  // namespace spyre::card
