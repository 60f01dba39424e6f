#include "program/topk.h"

#include <algorithm>
#include <functional>

namespace spyre::card {
namespace {

// Values that one thread looks at between two claims; fewer in all are left to the caller.
constexpr int64_t kPieceValues = 32 * 1024;

enum class Order : int8_t { FLOAT, SIGNED, UNSIGNED };

Order order_of(DataFormat format) {
  switch (format) {
    case DataFormat::IEEE_INT32:
    case DataFormat::SENINT8:
    case DataFormat::SENINT16:
      return Order::SIGNED;
    case DataFormat::SENUINT32:
      return Order::UNSIGNED;
    default:
      return Order::FLOAT;
  }
}

// An unsigned number that is larger for what counts as larger, and equal for what counts as equal.
uint32_t rank_of(uint32_t lane, Order order) {
  constexpr uint32_t kSign = 0x80000000;
  switch (order) {
    case Order::UNSIGNED:
      return lane;
    case Order::SIGNED:
      return lane ^ kSign;
    case Order::FLOAT:
      break;
  }
  const uint32_t magnitude = lane & ~kSign;
  if (magnitude > 0x7f800000) return UINT32_MAX;  // NaN
  return lane & kSign ? kSign - magnitude : kSign + magnitude;
}

// Chooses among the values of one group of lanes.
class GroupTopk {
 public:
  explicit GroupTopk(const TopkStep& step)
      : step_(step),
        order_(order_of(step.input.format)),
        values_(step.count * step.lanes),
        results_(step.k * step.lanes),
        candidates_(step.count) {}

  void run(const std::byte* input, int64_t input_sticks, std::byte* output, int64_t output_sticks,
           Numerics numerics) {
    const int lanes = step_.lanes;
    const int64_t input_stride = step_.input.strides.back();
    const int64_t output_stride = step_.output.strides.back();
    for (int64_t r = 0; r < step_.count; ++r) {
      load_group(step_.input, input + r * input_stride, input_sticks, lanes, numerics,
                 &values_[r * lanes]);
    }
    for (int lane = 0; lane < lanes; ++lane) {
      if (lane > 0 && is_like_the_one_before(lane)) {
        repeat(lane);
      } else {
        choose(lane);
      }
    }
    for (int64_t i = 0; i < step_.k; ++i) {
      store_group(step_.output, output + i * output_stride, output_sticks, lanes, numerics,
                  &results_[i * lanes]);
    }
  }

 private:
  // As the lanes of a vector of which each element has a stick of its own.
  bool is_like_the_one_before(int lane) const {
    for (int64_t r = 0; r < step_.count; ++r) {
      const uint32_t* value = &values_[r * step_.lanes + lane];
      if (value[0] != value[-1]) return false;
    }
    return true;
  }

  void repeat(int lane) {
    for (int64_t i = 0; i < step_.k; ++i) {
      uint32_t* result = &results_[i * step_.lanes + lane];
      result[0] = result[-1];
    }
  }

  void choose(int lane) {
    // The rank, and below it the index upside down: among equals the first is the largest.
    for (int64_t r = 0; r < step_.count; ++r) {
      const uint32_t rank = rank_of(values_[r * step_.lanes + lane], order_);
      candidates_[r] = uint64_t{step_.largest ? rank : ~rank} << 32 | ~static_cast<uint32_t>(r);
    }
    std::partial_sort(candidates_.begin(), candidates_.begin() + step_.k, candidates_.end(),
                      std::greater<>());
    for (int64_t i = 0; i < step_.k; ++i) {
      const uint32_t index = ~static_cast<uint32_t>(candidates_[i]);
      results_[i * step_.lanes + lane] =
          step_.indices ? index : values_[int64_t{index} * step_.lanes + lane];
    }
  }

  const TopkStep& step_;
  const Order order_;
  std::vector<uint32_t> values_, results_;  // by value, then by lane
  std::vector<uint64_t> candidates_;
};

int64_t num_groups(const TopkStep& step, int core) {
  int64_t groups = 1;
  for (int d = 0; d < step.dims; ++d) groups *= step.extents[core * step.dims + d];
  return groups;
}

// Groups first ... last - 1 of a core; the last dimension is the fastest.
void run_groups(const TopkStep& step, const RunContext& context, int core, int64_t first,
                int64_t last) {
  GroupTopk topk(step);
  const std::byte* input = resolve(step.input.address, core, context);
  std::byte* output = resolve(step.output.address, core, context);
  for (int64_t group = first; group < last; ++group) {
    int64_t rest = group, from = 0, to = 0, along = 0;
    for (int d = step.dims - 1; d >= 0; --d) {
      const int64_t extent = step.extents[core * step.dims + d];
      const int64_t index = rest % extent;
      rest /= extent;
      from += index * step.input.strides[d];
      to += index * step.output.strides[d];
      if (d == step.stick_dim) along = index;
    }
    topk.run(input + from, sticks_left(step.input, core, along, step.lanes), output + to,
             sticks_left(step.output, core, along, step.lanes), context.numerics);
  }
}

}  // namespace

TopkStep parse_topk(WordReader& reader, const StepHead& head) {
  constexpr int64_t kMostDims = 64;
  TopkStep step;
  step.lanes = static_cast<int>(reader.next(1, kMaxLanes, "the number of lanes"));
  step.dims = static_cast<int>(reader.next(0, kMostDims, "the number of kept dimensions"));
  step.stick_dim = static_cast<int>(reader.next(-1, step.dims - 1, "the stick dimension"));
  step.extents = reader.list(static_cast<size_t>(head.cores) * step.dims);
  for (int64_t extent : step.extents) {
    if (extent < 0) reader.fail("an extent is " + std::to_string(extent));
  }
  step.count = reader.next(1, INT32_MAX, "the number of values");
  step.k = reader.next(1, step.count, "k");
  step.largest = reader.next(0, 1, "largest") == 1;
  step.input = parse_tile_operand(reader, head, step.dims + 1, step.lanes);
  if (!step.input.can_load()) reader.fail("its input is an operand to store");
  step.indices = reader.next(0, 1, "what is stored") == 1;
  step.output = parse_tile_operand(reader, head, step.dims + 1, step.lanes);
  if (!step.output.can_store() || step.output.form == OperandForm::EXX2_STORE) {
    reader.fail("its output is an operand to load");
  }
  if (step.indices && step.output.format != DataFormat::IEEE_INT32) {
    reader.fail(std::string("indices are IEEE_INT32, not ") + name(step.output.format));
  }
  return step;
}

void run_topk(const TopkStep& step, const StepHead& head, const RunContext& context) {
  struct Piece {
    int core;
    int64_t first, last;
  };
  std::vector<Piece> pieces;
  const int64_t group_values = step.count * step.lanes;
  const int64_t piece = std::max<int64_t>(1, kPieceValues / group_values);
  int64_t groups = 0;
  for (int core = 0; core < head.cores; ++core) {
    const int64_t count = num_groups(step, core);
    for (int64_t first = 0; first < count; first += piece) {
      pieces.push_back({core, first, std::min(first + piece, count)});
    }
    groups += count;
  }
  const auto run = [&](int i) {
    run_groups(step, context, pieces[i].core, pieces[i].first, pieces[i].last);
  };
  const int count = static_cast<int>(pieces.size());
  if (groups * group_values < 2 * kPieceValues) {
    for (int i = 0; i < count; ++i) run(i);
  } else {
    context.pool.run(count, run);
  }
}

}  // namespace spyre::card
