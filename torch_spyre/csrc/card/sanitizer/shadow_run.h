// Runs one step on the shadows: which lanes hold data, and where values come from.
//
// A register is a group of lanes with one bit for each, and a tag that stands for all it was made
// from. Loading a stick that was never written, leaving a tensor, adding up lanes that hold no data
// and the like are reported to the launch. In the flow REFERENCE only tags are followed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sanitizer/sanitizer.h"
#include "sanitizer/shadow_lanes.h"

namespace spyre::card {

class ShadowRun {
 public:
  ShadowRun(CheckedLaunch& launch, Flow flow, size_t number, const ShadowStep& step,
            std::span<const int64_t> loop_index);
  void run();

 private:
  // Where an operand begins on a core, and the bytes that belong to it.
  struct Where {
    Shadow* shadow = nullptr;
    int64_t base = 0, low = 0, high = 0;
    int64_t start = 0;  // of the argument
    uint64_t seed = 0;  // of the tags of sticks that were not written in this launch

    uint64_t initial_tag(int64_t at) const { return mix(seed, (at - start) / kStickBytes); }
    const ProgramNames::Buffer* buffer = nullptr;
    uint16_t owner = 0;  // number of the buffer
  };
  struct Register {
    Bits data = Bits::full();
    uint64_t tag = 0;
    int operand = -1;  // that lanes without data came from
    int64_t offset = 0;
  };
  struct Total {
    Register value;
    bool begun = false;
  };
  using Code = std::vector<ShadowInstruction>;

  void run_tile(const ShadowTile& step);
  void run_team(const ShadowTile& step, const std::vector<int>& team);
  void execute(const Code& code, std::span<const TileOperand> operands, int core,
               const int64_t* offsets, int64_t group, int lanes, Register* registers,
               const Register* results);
  void add_up(const ShadowTile& step, const Register& value, const Bits& needed, int core,
              Total& total);
  void run_matmul(const ShadowMatmul& step);
  int64_t chosen_matrix(const ShadowMatmul& step, int core, const Counter& batch, int64_t row,
                        uint64_t& tag);
  void run_product(const ShadowMatmul& step, const std::vector<int>& team);
  Register row_of_x(const ShadowMatmul& step, int core, int64_t offset, int64_t depth);
  std::vector<Register> columns_of_y(const ShadowMatmul& step, int core, int64_t offset,
                                     int64_t columns, int64_t depth, int out_lanes);
  void run_copy(const ShadowCopy& step);
  bool put_sums(const CoreSums& sums, int core);
  void forget_tag(int core, int64_t offset);
  void forget_tags(const ShadowCopy::Side& side, int core);
  void add_to_stick(int number, int core, int64_t offset, uint64_t sum, const Bits& there,
                    const Bits& missing);
  void put_elements(const ShadowCopy::Side& side, int core, const std::vector<uint64_t>& elements,
                    int number);
  void run_gather(const GatherStep& step);
  void run_scatter_tags(const GatherStep& step, int core);
  void run_topk(const TopkStep& step);
  void run_ring(const RingStep& step);

  Register load(const TileOperand& operand, int number, int core, int64_t offset,
                int64_t sticks_left, int lanes);
  void store(const TileOperand& operand, int number, int core, int64_t offset, int64_t sticks_left,
             int lanes, const Register& value, const Register* second);
  // One stick; false when it does not lie in its tensor.
  // Who wants it quiet says so: a stick never written then has no data, and is no fault yet.
  bool read_stick(int number, int core, int64_t offset, Bits& data, uint64_t& tag,
                  bool quiet = false);
  bool write_stick(int number, int core, int64_t offset, const Bits& data, uint64_t tag);
  bool is_inside(int number, int core, int64_t offset, bool writes) {
    const Where& place = where(number, core);
    const int64_t at = place.base + offset;
    if (at >= place.low && at + kStickBytes <= place.high && at % kStickBytes == 0) return true;
    return report_outside(number, core, offset, writes);
  }
  bool report_outside(int number, int core, int64_t offset, bool writes);  // false
  void note_written(const Where& where, int number, int core, int64_t at);
  // Of a stick whose state makes a difference.
  void note_found(int number, int64_t at, const StickState& state);
  void check_span(int number, int core, int64_t low, int64_t high);

  void find_buffer(Where& where, const OperandAddress& address);

  const Where& where(int number, int core) const { return where_[number * cores_ + core]; }
  void report(const char* what, int number, int core, int64_t offset, const std::string& more = "");

  CheckedLaunch& launch_;
  Flow flow_;
  size_t number_;
  const ShadowStep& step_;
  std::vector<const OperandAddress*> addresses_;
  int cores_;
  uint32_t run_ = 0;
  std::vector<Where> where_;  // by operand, then by core
};

}  // namespace spyre::card
