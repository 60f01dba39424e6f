#include "program/gather.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace spyre::card {
namespace {

constexpr int64_t kIndicesPerStick = 32;
// Points that one thread does at a time; fewer than two such pieces are left to the caller.
constexpr int64_t kPiecePoints = 2048;

int64_t num_points(const GatherStep& step, int core) {
  int64_t points = 1;
  for (int d = 0; d < step.dims; ++d) points *= step.extents[core * step.dims + d];
  return points;
}

[[noreturn]] void fail(const StepHead& head, int32_t index, int64_t rows) {
  throw std::runtime_error("step '" + head.name + "': index " + std::to_string(index) +
                           " is out of bounds for dimension with size " + std::to_string(rows));
}

// Points of one core, walked like an odometer: the last dimension is the fastest.
class Walk {
 public:
  Walk(const GatherStep& step, const StepHead& head, const RunContext& context, int core)
      : step_(step),
        head_(head),
        extents_(step.extents.data() + core * step.dims),
        first_index_(step.first_index[core]),
        value_(resolve(step.value.address, core, context)),
        index_(resolve(step.index.address, core, context)),
        out_(resolve(step.out.address, core, context)),
        point_(step.dims) {}

  void run(int64_t first, int64_t last) {
    int64_t rest = first;
    for (int d = step_.dims - 1; d >= 0; --d) {
      point_[d] = rest % extents_[d];
      rest /= extents_[d];
    }
    const int64_t row = step_.dims == 0 ? 1 : extents_[step_.dims - 1];
    for (int64_t at = first; at < last;) {
      const int64_t count = step_.dims == 0 ? 1 : std::min(row - point_[step_.dims - 1], last - at);
      gather_row(count);
      at += count;
      advance(count);
    }
  }

 private:
  // `count` points along the last dimension.
  void gather_row(int64_t count) {
    const int last = step_.dims - 1;
    const std::byte* value = value_ + dot(step_.value.strides);
    const std::byte* index = index_ + dot(step_.index.strides);
    std::byte* out = out_ + dot(step_.out.strides);
    const int64_t value_stride = last < 0 ? 0 : step_.value.strides[last];
    const int64_t out_stride = last < 0 ? 0 : step_.out.strides[last];
    const int64_t index_stride = last < 0 ? 0 : step_.index.strides[last];
    const int64_t along = step_.stick_dim < 0 ? 0 : first_index_ + point_[step_.stick_dim];
    const int64_t along_step = step_.stick_dim >= 0 && step_.stick_dim == last ? 1 : 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = along + i * along_step;
      int32_t row;
      std::memcpy(&row,
                  index + i * index_stride + n / kIndicesPerStick * step_.stick_stride +
                      n % kIndicesPerStick * sizeof(row),
                  sizeof(row));
      if (row < -step_.rows || row >= step_.rows) fail(head_, row, step_.rows);
      const int64_t chosen = (row < 0 ? row + step_.rows : row) * step_.row_stride;
      std::memcpy(out + i * out_stride + (step_.scatters ? chosen : 0),
                  value + i * value_stride + (step_.scatters ? 0 : chosen), kStickBytes);
    }
  }

  int64_t dot(const std::vector<int64_t>& strides) const {
    int64_t sum = 0;
    for (int d = 0; d < step_.dims; ++d) sum += point_[d] * strides[d];
    return sum;
  }

  void advance(int64_t count) {
    int d = step_.dims - 1;
    if (d < 0) return;
    point_[d] += count;
    while (d > 0 && point_[d] == extents_[d]) {
      point_[d] = 0;
      ++point_[--d];
    }
  }

  const GatherStep& step_;
  const StepHead& head_;
  const int64_t* extents_;
  int64_t first_index_;
  const std::byte *value_, *index_;
  std::byte* out_;
  std::vector<int64_t> point_;
};

}  // namespace

GatherStep parse_gather(WordReader& reader, const StepHead& head) {
  constexpr int64_t kMostDims = 64;
  GatherStep step;
  step.dims = static_cast<int>(reader.next(0, kMostDims, "the number of dimensions"));
  step.extents = reader.list(static_cast<size_t>(head.cores) * step.dims);
  for (int64_t extent : step.extents) {
    if (extent < 0) reader.fail("an extent is " + std::to_string(extent));
  }
  step.rows = reader.next(0, INT32_MAX + int64_t{1}, "the number of rows");
  step.row_stride = reader.next();
  step.value.strides = reader.list(step.dims);
  step.value.address = parse_address(reader, head);
  step.index.strides = reader.list(step.dims);
  step.stick_dim = static_cast<int>(reader.next(-1, step.dims - 1, "the stick dimension"));
  step.stick_stride = reader.next();
  step.index.address = parse_address(reader, head);
  step.first_index = reader.list(head.cores);
  for (int64_t first : step.first_index) {
    if (first < 0) reader.fail("the first index of a core is " + std::to_string(first));
  }
  step.out.strides = reader.list(step.dims);
  step.out.address = parse_address(reader, head);
  return step;
}

GatherStep parse_scatter(WordReader& reader, const StepHead& head) {
  GatherStep step = parse_gather(reader, head);
  step.scatters = true;
  return step;
}

void run_gather(const GatherStep& step, const StepHead& head, const RunContext& context) {
  struct Piece {
    int core;
    int64_t first, last;
  };
  std::vector<Piece> pieces;
  int64_t points = 0;
  for (int core = 0; core < head.cores; ++core) {
    const int64_t count = num_points(step, core);
    for (int64_t first = 0; first < count; first += kPiecePoints) {
      pieces.push_back({core, first, std::min(first + kPiecePoints, count)});
    }
    points += count;
  }
  const auto run = [&](int i) {
    Walk(step, head, context, pieces[i].core).run(pieces[i].first, pieces[i].last);
  };
  const int count = static_cast<int>(pieces.size());
  if (points < 2 * kPiecePoints) {
    for (int i = 0; i < count; ++i) run(i);
  } else {
    context.pool.run(count, run);
  }
}

}  // namespace spyre::card
