// Matrix products for tests: what a step says, and what its results should be in double.
//
// Operands are written into card memory where the words of the step say, one element at a time;
// everything else in that memory is NaN. What the tests read back comes from there, too.
//
// Example: Problem problem = whole(8, 64, 128); fill_inputs(card, problem, random);
//   run(card, problem); check_results(card, problem, Numerics::DLFLOAT16, random);
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "matmul/matmul.h"
#include "numerics/dlfloat16.h"
#include "support/check.h"
#include "tile/machine.h"

namespace spyre::card {

constexpr DataFormat kFp16 = DataFormat::SEN169_FP16;
constexpr DataFormat kFp32 = DataFormat::IEEE_FP32;
constexpr DataFormat kFp8 = DataFormat::SEN143_FP8;

using Random = std::mt19937_64;

inline ThreadPool& pool() {
  static ThreadPool shared(2);
  return shared;
}

inline int64_t sticks_of(int64_t elements, DataFormat format) {
  return (elements + elems_per_stick(format) - 1) / elems_per_stick(format);
}

inline float load_float(DataFormat format, Numerics numerics, const std::byte* at) {
  return std::bit_cast<float>(load_element(format, numerics, at));
}
inline void store_float(DataFormat format, Numerics numerics, float value, std::byte* at) {
  store_element(format, numerics, std::bit_cast<uint32_t>(value), at);
}

// One operand [batch][sticks][rows][stick] somewhere on the card, or [rows][sticks][batch][stick].
struct Operand {
  DataFormat format;
  int64_t batches, rows, columns;  // columns lie along the sticks
  Space space = Space::ARGUMENT;
  int64_t begin = 0;  // bytes from the start of its space
  int64_t apart = 1;  // rows of a stick, in sticks
  bool alternates = false;

  int64_t sticks() const { return sticks_of(columns, format); }
  int64_t row_stride() const {
    return alternates ? sticks() * stick_stride() : apart * kStickBytes;
  }
  int64_t stick_stride() const {
    return alternates ? batches * kStickBytes : rows * apart * kStickBytes;
  }
  int64_t batch_stride() const {
    return batches == 1 ? 0 : alternates ? kStickBytes : sticks() * stick_stride();
  }
  int64_t bytes() const { return batches * sticks() * rows * apart * kStickBytes; }
  int64_t offset(int64_t batch, int64_t row, int64_t column) const {
    const int64_t n = elems_per_stick(format);
    return batch * batch_stride() + column / n * stick_stride() + row * row_stride() +
           column % n * bytes_per_elem(format);
  }
};

// What one core does; ranges in elements, columns begin with a stick.
struct Slice {
  int64_t batch = 0, batches = 1;
  int64_t row = 0, rows = 1;
  int64_t column = 0, columns = 1;
  int64_t k = 0, depth = 1;
  int64_t group = 0;
};

// An operand of the epilogue beside out; it lies in argument 3 and on.
struct Extra {
  Operand operand;
  OperandForm form = OperandForm::VECTOR;
  bool by_row = true;  // else the same in all rows
};

struct Problem {
  Operand x, y, out;
  std::vector<Slice> slices;
  bool groups = false;
  bool large = true;
  int loops = 0;
  std::vector<Extra> extras = {};
  std::vector<std::vector<int64_t>> epilogue = {};  // opcode, destination, a, b, c, imm0
};

inline void put(std::vector<int64_t>& words, std::initializer_list<int64_t> values) {
  words.insert(words.end(), values);
}

inline void put_address(std::vector<int64_t>& words, const Operand& operand, int64_t argument,
                        const std::vector<int64_t>& offsets, int loops) {
  put(words,
      {static_cast<int64_t>(operand.space), operand.space == Space::ARGUMENT ? argument : 0});
  for (int64_t offset : offsets) words.push_back(operand.begin + offset);
  for (int i = 0; i < loops; ++i) words.push_back(operand.bytes());
}

inline std::vector<int64_t> words_of(const Problem& problem) {
  std::vector<int64_t> words;
  const Operand &x = problem.x, &y = problem.y, &out = problem.out;
  put(words, {static_cast<int64_t>(x.format), static_cast<int64_t>(y.format),
              static_cast<int64_t>(out.format), problem.large, 1});
  std::vector<int64_t> x_at, y_at, out_at;
  for (const Slice& s : problem.slices) {
    put(words, {s.batches, s.rows, s.columns, s.depth});
    x_at.push_back(x.offset(x.batches == 1 ? 0 : s.batch, s.row, s.k));
    y_at.push_back(y.offset(y.batches == 1 ? 0 : s.batch, s.k, s.column));
    out_at.push_back(out.offset(s.batch, s.row, s.column));
  }
  put(words, {x.batch_stride(), x.row_stride(), x.stick_stride()});
  put_address(words, x, 0, x_at, problem.loops);
  put(words, {y.batch_stride(), y.row_stride(), y.stick_stride()});
  put_address(words, y, 1, y_at, problem.loops);
  put(words, {out.batch_stride(), out.row_stride(), out.stick_stride()});
  put_address(words, out, 2, out_at, problem.loops);
  words.push_back(problem.groups);
  for (const Slice& s : problem.slices) {
    if (problem.groups) words.push_back(s.group);
  }
  words.push_back(static_cast<int64_t>(problem.extras.size()));
  for (size_t i = 0; i < problem.extras.size(); ++i) {
    const Extra& extra = problem.extras[i];
    const Operand& is = extra.operand;
    const bool splat = extra.form == OperandForm::SPLAT;
    put(words, {static_cast<int64_t>(is.format), static_cast<int64_t>(extra.form)});
    put(words,
        {is.batch_stride(), extra.by_row ? is.row_stride() : 0, splat ? 0 : is.stick_stride()});
    std::vector<int64_t> at;
    for (const Slice& s : problem.slices) {
      at.push_back(
          is.offset(is.batches == 1 ? 0 : s.batch, extra.by_row ? s.row : 0, splat ? 0 : s.column));
    }
    put_address(words, is, 3 + static_cast<int64_t>(i), at, problem.loops);
  }
  words.push_back(static_cast<int64_t>(problem.epilogue.size()));
  for (const std::vector<int64_t>& in : problem.epilogue) {
    std::vector<int64_t> all = {0, -1, -1, -1, -1, 0, 0, 0};
    std::copy(in.begin(), in.end(), all.begin());
    words.insert(words.end(), all.begin(), all.end());
  }
  return words;
}

inline StepHead head_of(const Problem& problem) {
  return {2, static_cast<int>(problem.slices.size()), problem.loops, "mm", 0};
}

// Memory and scratchpads that are full of NaN.
class Card {
 public:
  explicit Card(size_t cores = 1) : memory_(0, 64 << 20) {
    for (size_t c = 0; c < cores; ++c) lx_.push_back(allocate(1 << 20));
    for (Address at : lx_) lx_pointers_.push_back(memory_.host(at));
    for (int i = 0; i < 6; ++i) arguments_.push_back(allocate(8 << 20));
  }
  void add_pairs(bool pairs) { pairs_ = pairs; }
  std::byte* argument(int i) { return memory_.host(arguments_[i]); }
  std::byte* lx(int core) { return lx_pointers_[core]; }
  std::byte* begin(const Operand& operand, int i, int core = 0) {
    return (operand.space == Space::LX ? lx(core) : argument(i)) + operand.begin;
  }
  RunContext context(Numerics numerics = Numerics::DLFLOAT16,
                     std::span<const int64_t> loop_index = {}) {
    return {{.memory = memory_,
             .pool = pool(),
             .numerics = numerics,
             .lx = lx_pointers_,
             .pairs = pairs_},
            arguments_,
            loop_index};
  }

 private:
  Address allocate(size_t bytes) {
    const Address at = memory_.allocate(bytes)->address;
    std::memset(memory_.host(at), 0xff, bytes);
    return at;
  }

  Memory memory_;
  std::vector<Address> arguments_, lx_;
  std::vector<std::byte*> lx_pointers_;
  bool pairs_ = false;
};

inline void fill(std::byte* begin, const Operand& operand, Numerics numerics, Random& random) {
  std::normal_distribution<float> normal;
  for (int64_t b = 0; b < operand.batches; ++b) {
    for (int64_t r = 0; r < operand.rows; ++r) {
      for (int64_t c = 0; c < operand.columns; ++c) {
        store_float(operand.format, numerics, normal(random), begin + operand.offset(b, r, c));
      }
    }
  }
}

inline double exact(const Problem& problem, const std::byte* x, const std::byte* y,
                    Numerics numerics, int64_t batch, int64_t row, int64_t column,
                    double& magnitude) {
  double sum = 0;
  magnitude = 0;
  for (int64_t k = 0; k < problem.x.columns; ++k) {
    const double term =
        double{load_float(problem.x.format, numerics,
                          x + problem.x.offset(problem.x.batches == 1 ? 0 : batch, row, k))} *
        load_float(problem.y.format, numerics,
                   y + problem.y.offset(problem.y.batches == 1 ? 0 : batch, k, column));
    sum += term;
    magnitude += std::fabs(term);
  }
  return sum;
}

// All elements, or a random choice of many.
inline void check_results(Card& card, const Problem& problem, Numerics numerics, Random& random) {
  const std::byte *x = card.begin(problem.x, 0), *y = card.begin(problem.y, 1);
  const Operand& out = problem.out;
  const int64_t count = out.batches * out.rows * out.columns;
  const double rounding = out.format == kFp32 ? 0 : numerics == Numerics::IEEE ? 0x1p-11 : 0x1p-10;
  for (int64_t i = 0; i < std::min<int64_t>(count, 600); ++i) {
    const int64_t e = count <= 600 ? i : static_cast<int64_t>(random() % count);
    const int64_t batch = e / (out.rows * out.columns), row = e / out.columns % out.rows;
    const int64_t column = e % out.columns;
    double magnitude;
    const double expected = exact(problem, x, y, numerics, batch, row, column, magnitude);
    const double is =
        load_float(out.format, numerics, card.begin(out, 2) + out.offset(batch, row, column));
    const double error =
        magnitude * 0x1p-24 * (8 + problem.x.columns) + std::fabs(expected) * rounding + 1e-30;
    CHECK(std::fabs(is - expected) <= error);
    if (!(std::fabs(is - expected) <= error)) CHECK_EQ(is, expected);
  }
}

inline void run(Card& card, const Problem& problem, Numerics numerics = Numerics::DLFLOAT16,
                Simd simd = best_simd()) {
  const std::vector<int64_t> words = words_of(problem);
  WordReader reader(words, "mm");
  const StepHead head = head_of(problem);
  const MatmulStep step = parse_matmul(reader, head);
  CHECK(reader.done());
  run_matmul(step, head, card.context(numerics), simd);
}

inline std::vector<std::byte> bytes_of_out(Card& card, const Problem& problem) {
  const std::byte* begin = card.begin(problem.out, 2);
  return {begin, begin + problem.out.bytes()};
}

inline Problem whole(int64_t rows, int64_t columns, int64_t depth, DataFormat x = kFp16,
                     DataFormat y = kFp16, DataFormat out = kFp16) {
  Problem problem = {{x, 1, rows, depth}, {y, 1, depth, columns}, {out, 1, rows, columns}, {}};
  problem.slices.push_back({0, 1, 0, rows, 0, columns, 0, depth, 0});
  return problem;
}

// Cuts [0, size) into about equal pieces of whole units.
inline std::vector<std::pair<int64_t, int64_t>> cut(int64_t size, int64_t pieces, int64_t unit) {
  const int64_t units = (size + unit - 1) / unit;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t begin = units * i / pieces * unit;
    const int64_t end = std::min(units * (i + 1) / pieces * unit, size);
    ranges.push_back({begin, std::max(begin, end)});
  }
  return ranges;
}

// Divides a problem among cores in all directions; cores of a group divide k.
inline void divide(Problem& problem, int64_t batch_cores, int64_t row_cores, int64_t column_cores,
                   int64_t depth_cores) {
  const auto batches = cut(problem.out.batches, batch_cores, 1);
  const auto rows = cut(problem.out.rows, row_cores, 1);
  const auto columns =
      cut(problem.out.columns, column_cores,
          std::max(elems_per_stick(problem.out.format), elems_per_stick(problem.y.format)));
  const auto depths = cut(problem.x.columns, depth_cores, elems_per_stick(problem.x.format));
  problem.slices.clear();
  problem.groups = depth_cores > 1;
  for (const auto& k : depths) {
    int64_t group = 0;
    for (const auto& b : batches) {
      for (const auto& m : rows) {
        for (const auto& n : columns) {
          problem.slices.push_back({b.first, b.second - b.first, m.first, m.second - m.first,
                                    n.first, n.second - n.first, k.first, k.second - k.first,
                                    100 - group++});
        }
      }
    }
  }
}

inline void fill_inputs(Card& card, const Problem& problem, Random& random,
                        Numerics numerics = Numerics::DLFLOAT16) {
  fill(card.begin(problem.x, 0), problem.x, numerics, random);
  fill(card.begin(problem.y, 1), problem.y, numerics, random);
}

inline void clear_out(Card& card, const Problem& problem) {
  std::memset(card.begin(problem.out, 2), 0xff, problem.out.bytes());
}

}  // namespace spyre::card
