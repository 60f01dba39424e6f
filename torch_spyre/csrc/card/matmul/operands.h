// Where the operands of a matrix product lie in host memory.
//
// Example: StickRow(bases[place], operand).at(70) is the 71st element along the sticks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "matmul/kernels.h"
#include "matmul/matmul.h"

namespace spyre::card {

// Where an operand begins: by core in a scratchpad, else once.
class Bases {
 public:
  Bases(const MatmulOperand& operand, const StepHead& head, const RunContext& context) {
    const int count = operand.address.space == Space::LX ? head.cores : std::min(head.cores, 1);
    for (int core = 0; core < count; ++core) {
      bases_.push_back(resolve(operand.address, core, context));
    }
  }
  std::byte* first() const { return bases_.empty() ? nullptr : bases_[0]; }
  std::byte* operator[](const MatmulStep::Place& place) const {
    return bases_[place.core] + place.offset;
  }

 private:
  std::vector<std::byte*> bases_;
};

// Elements along sticks, from an element that a pointer may name inside its stick.
class StickRow {
 public:
  StickRow(std::byte* begin, const MatmulOperand& operand)
      : elem_bytes_(bytes_per_elem(operand.format)),
        per_stick_(elems_per_stick(operand.format)),
        stick_stride_(operand.stick_stride) {
    const int64_t inside = reinterpret_cast<uintptr_t>(begin) % kStickBytes;
    begin_ = begin - inside;
    skipped_ = inside / elem_bytes_;
  }
  std::byte* at(int64_t element) const {
    element += skipped_;
    return begin_ + element / per_stick_ * stick_stride_ + element % per_stick_ * elem_bytes_;
  }
  // Elements from this one to the end of its stick.
  int64_t room(int64_t element) const { return per_stick_ - (element + skipped_) % per_stick_; }
  bool has_whole_panels() const { return skipped_ % kPanel == 0; }

 private:
  int64_t elem_bytes_, per_stick_, stick_stride_;
  std::byte* begin_;
  int64_t skipped_;  // elements of the first stick
};

inline bool is_dlfloat16(DataFormat format, Numerics numerics) {
  return format == DataFormat::SEN169_FP16 && numerics == Numerics::DLFLOAT16;
}

}  // namespace spyre::card
