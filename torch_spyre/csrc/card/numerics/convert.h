// Element conversions between host types and the formats of the card, on rows of elements.
//
// In: a host type, a device format, the numerics. Out: a Conversion, which names a pair of inverse
// row kernels in a ConvertTable. There is one table for each form of SIMD, with the same results to
// the bit; best_simd() is the fastest that this processor has.
//
// Example: convert_table(best_simd()).to_card[int(Conversion::F16_DLF16)](dst, 0, src, 0, 1, n,
// ...)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "numerics/formats.h"

namespace spyre::card {

// With AVX512 only matrix products have kernels of their own; all else is that of AVX2.
enum class Simd : int8_t { PORTABLE, AVX2, AVX512 };
Simd best_simd();
bool has_simd(Simd simd);

// Named host_device. Same-size copies are named by the bytes of an element.
enum class Conversion : int8_t {
  COPY_1,
  COPY_2,
  COPY_4,
  COPY_8,
  COPY_16,
  F32_DLF16,
  F16_DLF16,  // reading back, 65536 (what 65504 became) is 65504 again and more is infinity
  BF16_DLF16,
  BOOL_DLF16,  // 0.0 and 1.0; reading back, everything but zero is true
  F32_HALF,    // the device formats of Numerics::IEEE
  BF16_HALF,
  BOOL_HALF,
  F16_F32,
  BF16_F32,
  I64_I32,  // to the card: fails for values that do not fit
  U8_U32,   // from the card: the lowest byte
};
constexpr int kNumConversions = 16;

// The conversion for a pair; nothing when there is none.
std::optional<Conversion> find_conversion(HostType type, DataFormat format, Numerics numerics);
Conversion copy_of(int64_t elem_bytes);  // throws std::invalid_argument unless 1, 2, 4, 8 or 16

// STREAM writes past the caches where it can; call the table's fence() before others read.
enum class Stores : int8_t { CACHED, STREAM };

// Converts `rows` rows of `cols` elements; pitches are bytes from row to row. Rows of source and
// destination must not overlap. False when a value did not fit (it is then truncated).
using ConvertRows = bool (*)(std::byte* dst, int64_t dst_pitch, const std::byte* src,
                             int64_t src_pitch, int64_t rows, int64_t cols, Stores stores);
// Element (i, j) of the rows x cols source becomes element (j, i) of the destination.
using TransposeBlock = void (*)(std::byte* dst, int64_t dst_pitch, const std::byte* src,
                                int64_t src_pitch, int64_t rows, int64_t cols);

struct ConvertTable {
  ConvertRows to_card[kNumConversions];
  ConvertRows from_card[kNumConversions];
  TransposeBlock transpose_1, transpose_2, transpose_4;  // by the bytes of an element
  void (*fence)();
};
// Throws std::invalid_argument when this processor or build does not have the form.
const ConvertTable& convert_table(Simd simd);

// Array forms of numerics/dlfloat16.h.
void encode_dlfloat16(const float* values, uint16_t* codes, int64_t count, Simd simd);
void decode_dlfloat16(const uint16_t* codes, float* values, int64_t count, Simd simd);

namespace simd_avx2 {
extern const ConvertTable kConvertTable;
}
namespace simd_portable {
extern const ConvertTable kConvertTable;
}

}  // namespace spyre::card
