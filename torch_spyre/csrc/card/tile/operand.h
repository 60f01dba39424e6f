// An operand of a tile program (or of topk): where its sticks lie and how a group of lanes is made
// of them.
//
// A group of `lanes` lanes is made of sticks_per_group() sticks that lie sub_stride bytes apart.
// Lanes are 32 bits: a float32, or an int32 for the integer formats. load_group and store_group are
// the plain scalar form, one lane after another; tile programs have their own SIMD form with the
// same results.
//
// Example: load_group(operand, at, sticks_left(operand, core, 3, 64), 64, numerics, out);
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "numerics/formats.h"
#include "step/steps.h"

namespace spyre::card {

constexpr int kMaxLanes = 128;  // of a group
constexpr int64_t kAllSticks = INT64_MAX;

enum class OperandForm : int8_t {
  VECTOR = 0,
  SPLAT = 1,          // the first element of the stick in every lane
  EXX2_MEAN = 2,      // of an EXX2 stick, in every lane
  EXX2_VARIANCE = 3,  // likewise
  EXX2_STORE = 4,     // a stick of lane 0 of two registers: mean and variance
  SPLAT_STORE = 5,    // lane 0 in the whole stick
};

struct TileOperand {
  DataFormat format = DataFormat::SEN169_FP16;
  OperandForm form = OperandForm::VECTOR;
  std::vector<int64_t> strides;  // bytes per dimension
  int64_t sub_stride = 0;        // bytes between the sticks of a group
  std::vector<int64_t> limits;   // per core: sticks along the stick dim; -1: as many as needed
  OperandAddress address;

  bool can_load() const { return form <= OperandForm::EXX2_VARIANCE; }
  bool can_store() const { return form == OperandForm::VECTOR || form >= OperandForm::EXX2_STORE; }
};

// Formats that have a form in 32-bit lanes.
bool is_tile_format(DataFormat format);

// Reads an operand with `dims` strides for groups of `lanes` lanes.
TileOperand parse_tile_operand(WordReader& reader, const StepHead& head, int dims, int lanes);

// Sticks that a group of lanes takes: one for all forms but VECTOR.
int sticks_per_group(const TileOperand& operand, int lanes);

// Whether all sticks exist, on every core.
bool is_unlimited(const TileOperand& operand);

// Sticks that exist from the group with this index along the stick dim on; at least 0.
int64_t sticks_left(const TileOperand& operand, int core, int64_t group, int lanes);

// `at` is the first stick of the group. Lanes of sticks that do not exist are zero.
void load_group(const TileOperand& operand, const std::byte* at, int64_t sticks_left, int lanes,
                Numerics numerics, uint32_t* out);
// Sticks that do not exist are left out. `second` is the variance of EXX2_STORE.
void store_group(const TileOperand& operand, std::byte* at, int64_t sticks_left, int lanes,
                 Numerics numerics, const uint32_t* in, const uint32_t* second = nullptr);

// The same where all lanes are one value; not for EXX2_STORE.
void store_splat(const TileOperand& operand, std::byte* at, int64_t sticks_left, int lanes,
                 Numerics numerics, uint32_t lane);

// What a load of any other form than VECTOR puts in every lane.
uint32_t load_splat(const TileOperand& operand, const std::byte* at, Numerics numerics);

// One element of a format as a 32-bit lane, and back with the rounding of the format.
uint32_t load_element(DataFormat format, Numerics numerics, const std::byte* from);
void store_element(DataFormat format, Numerics numerics, uint32_t lane, std::byte* to);

}  // namespace spyre::card
