// Matrix products against sums in double, element by element and stick by stick.
//
// Operands are written into card memory where the words of the step say, one element at a time;
// everything else in that memory is NaN. What the tests read back comes from there, too.
#include "matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "dlfloat16.h"
#include "tile_machine.h"

using namespace spyre::card;

namespace {

constexpr DataFormat kFp16 = DataFormat::SEN169_FP16;
constexpr DataFormat kFp32 = DataFormat::IEEE_FP32;
constexpr DataFormat kFp8 = DataFormat::SEN143_FP8;

using Random = std::mt19937_64;

ThreadPool& pool() {
  static ThreadPool shared(2);
  return shared;
}

int64_t sticks_of(int64_t elements, DataFormat format) {
  return (elements + elems_per_stick(format) - 1) / elems_per_stick(format);
}

float load_float(DataFormat format, Numerics numerics, const std::byte* at) {
  return std::bit_cast<float>(load_element(format, numerics, at));
}
void store_float(DataFormat format, Numerics numerics, float value, std::byte* at) {
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
  int loops = 0;
  std::vector<Extra> extras = {};
  std::vector<std::vector<int64_t>> epilogue = {};  // opcode, destination, a, b, c, imm0
};

void put(std::vector<int64_t>& words, std::initializer_list<int64_t> values) {
  words.insert(words.end(), values);
}

void put_address(std::vector<int64_t>& words, const Operand& operand, int64_t argument,
                 const std::vector<int64_t>& offsets, int loops) {
  put(words,
      {static_cast<int64_t>(operand.space), operand.space == Space::ARGUMENT ? argument : 0});
  for (int64_t offset : offsets) words.push_back(operand.begin + offset);
  for (int i = 0; i < loops; ++i) words.push_back(operand.bytes());
}

std::vector<int64_t> words_of(const Problem& problem) {
  std::vector<int64_t> words;
  const Operand &x = problem.x, &y = problem.y, &out = problem.out;
  put(words, {static_cast<int64_t>(x.format), static_cast<int64_t>(y.format),
              static_cast<int64_t>(out.format), 1});
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

StepHead head_of(const Problem& problem) {
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
  std::byte* argument(int i) { return memory_.host(arguments_[i]); }
  std::byte* lx(int core) { return lx_pointers_[core]; }
  std::byte* begin(const Operand& operand, int i, int core = 0) {
    return (operand.space == Space::LX ? lx(core) : argument(i)) + operand.begin;
  }
  RunContext context(Numerics numerics = Numerics::DLFLOAT16,
                     std::span<const int64_t> loop_index = {}) {
    return {arguments_, memory_, pool(), numerics, lx_pointers_, loop_index};
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
};

void fill(std::byte* begin, const Operand& operand, Numerics numerics, Random& random) {
  std::normal_distribution<float> normal;
  for (int64_t b = 0; b < operand.batches; ++b) {
    for (int64_t r = 0; r < operand.rows; ++r) {
      for (int64_t c = 0; c < operand.columns; ++c) {
        store_float(operand.format, numerics, normal(random), begin + operand.offset(b, r, c));
      }
    }
  }
}

double exact(const Problem& problem, const std::byte* x, const std::byte* y, Numerics numerics,
             int64_t batch, int64_t row, int64_t column, double& magnitude) {
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
void check_results(Card& card, const Problem& problem, Numerics numerics, Random& random) {
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

void run(Card& card, const Problem& problem, Numerics numerics = Numerics::DLFLOAT16,
         Simd simd = best_simd()) {
  const std::vector<int64_t> words = words_of(problem);
  WordReader reader(words, "mm");
  const StepHead head = head_of(problem);
  const MatmulStep step = parse_matmul(reader, head);
  CHECK(reader.done());
  run_matmul(step, head, card.context(numerics), simd);
}

std::vector<std::byte> bytes_of_out(Card& card, const Problem& problem) {
  const std::byte* begin = card.begin(problem.out, 2);
  return {begin, begin + problem.out.bytes()};
}

Problem whole(int64_t rows, int64_t columns, int64_t depth, DataFormat x = kFp16,
              DataFormat y = kFp16, DataFormat out = kFp16) {
  Problem problem = {{x, 1, rows, depth}, {y, 1, depth, columns}, {out, 1, rows, columns}, {}};
  problem.slices.push_back({0, 1, 0, rows, 0, columns, 0, depth, 0});
  return problem;
}

// Cuts [0, size) into about equal pieces of whole units.
std::vector<std::pair<int64_t, int64_t>> cut(int64_t size, int64_t pieces, int64_t unit) {
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
void divide(Problem& problem, int64_t batch_cores, int64_t row_cores, int64_t column_cores,
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

void fill_inputs(Card& card, const Problem& problem, Random& random,
                 Numerics numerics = Numerics::DLFLOAT16) {
  fill(card.begin(problem.x, 0), problem.x, numerics, random);
  fill(card.begin(problem.y, 1), problem.y, numerics, random);
}

void clear_out(Card& card, const Problem& problem) {
  std::memset(card.begin(problem.out, 2), 0xff, problem.out.bytes());
}

}  // namespace

TEST(odd_sizes_agree_with_sums_in_double_whatever_the_padding_holds) {
  Random random(1);
  Card card;
  const int64_t sizes[] = {1, 63, 64, 65, 100, 129};
  for (int64_t rows : sizes) {
    for (int64_t columns : sizes) {
      for (int64_t depth : sizes) {
        Problem problem = whole(rows, columns, depth);
        std::memset(card.argument(0), 0xff, problem.x.bytes());
        std::memset(card.argument(1), 0xff, problem.y.bytes() + 4096);
        fill_inputs(card, problem, random);
        run(card, problem);
        check_results(card, problem, Numerics::DLFLOAT16, random);
      }
    }
  }
}

TEST(all_numbers_of_rows_up_to_two_micro_kernels_and_deep_sums) {
  Random random(2);
  Card card;
  for (int64_t rows = 1; rows <= 13; ++rows) {
    for (int64_t depth : {7, 256, 257, 700}) {
      const Problem problem = whole(rows, 70, depth);
      fill_inputs(card, problem, random);
      run(card, problem);
      check_results(card, problem, Numerics::DLFLOAT16, random);
    }
  }
}

TEST(rows_may_lie_apart_and_what_is_between_them_stays) {
  Card card;
  for (Simd simd : {Simd::PORTABLE, Simd::AVX2, Simd::AVX512}) {
    if (!has_simd(simd)) continue;
    for (int64_t rows : {1, 7, 50, 400}) {
      Problem problem = whole(rows, 70, 40);
      std::vector<uint16_t> codes[2];
      for (int64_t apart : {1, 3}) {
        Random random(4);
        problem.x.apart = problem.out.apart = apart;
        clear_out(card, problem);
        fill_inputs(card, problem, random);
        run(card, problem, Numerics::DLFLOAT16, simd);
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t column = 0; column < 70; ++column) {
            const std::byte* at = card.argument(2) + problem.out.offset(0, row, column);
            std::memcpy(&codes[apart / 2].emplace_back(), at, 2);
            if (apart > 1) CHECK_EQ(int(at[kStickBytes]), 0xff);
          }
        }
      }
      CHECK(codes[0] == codes[1]);
    }
  }
}

TEST(formats_may_differ) {
  Random random(3);
  Card card;
  const DataFormat formats[] = {kFp16, kFp32, kFp8, DataFormat::IEEE_FP16, DataFormat::BFLOAT16};
  for (Numerics numerics : {Numerics::DLFLOAT16, Numerics::IEEE}) {
    for (DataFormat x : formats) {
      for (DataFormat y : formats) {
        for (DataFormat out : {kFp16, kFp32}) {
          for (int64_t rows : {1, 3, 20}) {
            Problem problem = whole(rows, 200, 100, x, y, out);
            clear_out(card, problem);
            fill_inputs(card, problem, random, numerics);
            run(card, problem, numerics);
            check_results(card, problem, numerics, random);
          }
        }
      }
    }
  }
}

TEST(every_dlfloat16_code_is_unpacked_as_its_definition_says) {
  Card card;
  for (auto [rows, simd] :
       {std::pair{1, Simd::PORTABLE}, std::pair{7, Simd::PORTABLE}, std::pair{1, Simd::AVX2},
        std::pair{7, Simd::AVX2}, std::pair{1, Simd::AVX512}, std::pair{7, Simd::AVX512}}) {
    if (!has_simd(simd)) continue;  // one row is unpacked on the fly, seven to panels
    const Problem problem = whole(rows, 65536, 1, kFp32, kFp16, kFp32);
    for (int64_t r = 0; r < rows; ++r) {
      store_float(kFp32, {}, 1.0f, card.argument(0) + problem.x.offset(0, r, 0));
    }
    for (int64_t code = 0; code < 65536; ++code) {
      const uint16_t bits = static_cast<uint16_t>(code);
      std::memcpy(card.argument(1) + problem.y.offset(0, 0, code), &bits, 2);
    }
    run(card, problem, Numerics::DLFLOAT16, simd);
    for (int64_t code = 0; code < 65536; ++code) {
      float is;
      std::memcpy(&is, card.argument(2) + problem.out.offset(0, rows - 1, code), 4);
      const float expected = decode_dlfloat16(static_cast<uint16_t>(code));
      CHECK(std::isnan(expected) ? std::bit_cast<uint32_t>(is) == 0x7fc00000 : is == expected);
    }
  }
}

TEST(sums_are_rounded_to_dlfloat16_as_its_definition_says) {
  // Bits of floats around all that is special, of both signs, and others at random.
  std::vector<uint32_t> values;
  const auto around = [&](uint32_t bits) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      for (int64_t by = -2; by <= 2; ++by) values.push_back((bits + by) | sign);
    }
  };
  for (float value : {0x1p-33f, 0x1p-32f, 0x1p-31f, 1.0f, 65504.0f, 0x1p32f, 0x1.ffp32f}) {
    around(std::bit_cast<uint32_t>(value));
  }
  for (uint32_t bits : {2u, 0x00800000u, static_cast<uint32_t>(Dlfloat16::kHalfTiny),
                        static_cast<uint32_t>(Dlfloat16::kRebias + Dlfloat16::kHalfUlp),
                        0x4fff0000u, 0x4fff4000u, 0x4fff6000u, 0x7f7ffffdu, 0x7f800000u}) {
    around(bits);
  }
  Random random(18);
  while (values.size() < 2000) values.push_back(static_cast<uint32_t>(random()));
  const auto rows = static_cast<int64_t>(values.size());
  Card card;
  const Problem problem = whole(rows, 64, 1, kFp32, kFp32, kFp16);
  for (int64_t c = 0; c < 64; ++c) {
    store_float(kFp32, {}, 1.0f, card.argument(1) + problem.y.offset(0, 0, c));
  }
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(card.argument(0) + problem.x.offset(0, r, 0), &values[r], 4);
  }
  for (Simd simd : {Simd::PORTABLE, Simd::AVX2, Simd::AVX512}) {
    if (!has_simd(simd)) continue;
    clear_out(card, problem);
    run(card, problem, Numerics::DLFLOAT16, simd);
    for (int64_t r = 0; r < rows; ++r) {
      // A sum is 0 + value: minus zero becomes zero, and there is one NaN.
      const float sum = std::bit_cast<float>(values[r]) + 0.0f;
      const uint16_t expected = std::isnan(sum) ? Dlfloat16::kNan : encode_dlfloat16(sum);
      uint16_t is;
      std::memcpy(&is, card.argument(2) + problem.out.offset(0, r, r % 64), 2);
      CHECK_EQ(is, expected);
    }
  }
}

TEST(batches_share_what_has_one_batch) {
  Random random(4);
  Card card;
  for (int64_t x_batches : {1, 5}) {
    for (int64_t y_batches : {1, 5}) {
      for (int64_t rows : {1, 2, 33}) {
        Problem problem = whole(rows, 100, 130);
        problem.x.batches = x_batches;
        problem.y.batches = y_batches;
        problem.out.batches = 5;
        divide(problem, 2, 1, 1, 1);
        fill_inputs(card, problem, random);
        run(card, problem);
        check_results(card, problem, Numerics::DLFLOAT16, random);
      }
    }
  }
}

TEST(batches_may_alternate_row_by_row) {
  Card card;
  for (Simd simd : {Simd::PORTABLE, Simd::AVX2, Simd::AVX512}) {
    if (!has_simd(simd)) continue;
    for (auto [rows, row_cores] : {std::pair{7, 2}, {64, 8}, {100, 9}}) {
      for (int64_t y_batches : {1, 5}) {
        for (DataFormat format : {kFp16, kFp8}) {
          Problem problem = whole(rows, 70, 150, format);
          problem.x.batches = problem.out.batches = 5;
          problem.y.batches = y_batches;
          divide(problem, 1, row_cores, 1, 1);
          std::vector<uint16_t> codes[2];
          for (bool alternates : {false, true}) {
            Random random(4);
            problem.x.alternates = problem.out.alternates = alternates;
            std::memset(card.argument(0), 0xff, 1 << 20);
            clear_out(card, problem);
            fill_inputs(card, problem, random);
            run(card, problem, Numerics::DLFLOAT16, simd);
            check_results(card, problem, Numerics::DLFLOAT16, random);
            for (int64_t i = 0; i < 5 * rows * 70; ++i) {
              const std::byte* at =
                  card.argument(2) + problem.out.offset(i / 70 / rows, i / 70 % rows, i % 70);
              std::memcpy(&codes[alternates].emplace_back(), at, 2);
            }
          }
          CHECK(codes[0] == codes[1]);
        }
      }
    }
  }
}

TEST(slices_that_share_y_are_one_product) {
  Problem problem = whole(100, 256, 64);
  divide(problem, 1, 4, 2, 1);
  const std::vector<int64_t> words = words_of(problem);
  WordReader reader(words, "mm");
  const MatmulStep step = parse_matmul(reader, head_of(problem));
  CHECK_EQ(step.products.size(), 2u);
  CHECK_EQ(step.row_lists.size(), 1u);
  CHECK_EQ(step.row_lists[0].rows.size(), 1u);
  CHECK_EQ(step.row_lists[0].count, 100);
}

TEST(the_division_into_cores_and_rows_does_not_change_a_bit) {
  Random random(5);
  Card card;
  Problem problem = whole(130, 300, 600);
  fill_inputs(card, problem, random);
  run(card, problem);
  const auto expected = bytes_of_out(card, problem);
  for (auto [m, n] : {std::pair{1, 5}, {4, 1}, {7, 3}, {130, 1}}) {
    divide(problem, 1, m, n, 1);
    clear_out(card, problem);
    run(card, problem);
    CHECK(bytes_of_out(card, problem) == expected);
  }
  // One row alone, and few together.
  for (int64_t rows : {1, 2, 3, 5, 6, 7}) {
    problem.slices = {{0, 1, 40, rows, 0, 300, 0, 600, 0}};
    clear_out(card, problem);
    run(card, problem);
    const auto is = bytes_of_out(card, problem);
    for (int64_t r = 40; r < 40 + rows; ++r) {
      for (int64_t c = 0; c < 300; c += 64) {
        const int64_t at = problem.out.offset(0, r, c);
        CHECK(std::memcmp(&is[at], &expected[at], kStickBytes) == 0);
      }
    }
  }
}

TEST(threads_do_not_change_a_bit) {
  Random random(6);
  Card card;
  Problem problem = whole(200, 300, 600);
  divide(problem, 1, 2, 2, 3);
  fill_inputs(card, problem, random);
  run(card, problem);
  const auto expected = bytes_of_out(card, problem);
  for (int threads : {1, 5}) {
    pool().resize(threads);
    clear_out(card, problem);
    run(card, problem);
    CHECK(bytes_of_out(card, problem) == expected);
  }
  pool().resize(2);
}

TEST(partial_sums_are_added_in_order_of_core_number) {
  Card card;
  Problem problem = whole(1, 64, 192, kFp16, kFp16, kFp32);
  divide(problem, 1, 1, 1, 3);
  for (int64_t rows : {1, 8}) {
    problem.x.rows = problem.out.rows = rows;
    for (Slice& slice : problem.slices) slice.rows = rows;
    // 2^24 + 1 + 1 is 2^24 in float32; 1 + 1 + 2^24 is not.
    for (bool rising : {true, false}) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < 192; ++k) {
          const float big = 0x1p24f;
          const float value = k % 64 ? 0 : k / 64 == (rising ? 2 : 0) ? big : 1;
          store_float(kFp16, {}, value, card.argument(0) + problem.x.offset(0, r, k));
        }
      }
      for (int64_t k = 0; k < 192; ++k) {
        for (int64_t n = 0; n < 64; ++n) {
          store_float(kFp16, {}, 1, card.argument(1) + problem.y.offset(0, k, n));
        }
      }
      run(card, problem);
      const float is = load_float(kFp32, {}, card.argument(2) + problem.out.offset(0, rows - 1, 0));
      CHECK_EQ(is, rising ? 0x1p24f + 2 : 0x1p24f);
    }
  }
}

TEST(divided_sums_agree_with_sums_in_double) {
  Random random(7);
  Card card;
  for (int64_t rows : {1, 4, 65}) {
    for (int64_t depth : {100, 129, 640}) {
      Problem problem = whole(rows, 129, depth);
      problem.x.batches = problem.out.batches = 2;
      divide(problem, 2, rows > 1 ? 2 : 1, 2, 2);
      fill_inputs(card, problem, random);
      run(card, problem);
      check_results(card, problem, Numerics::DLFLOAT16, random);
    }
  }
}

TEST(all_forms_of_simd_give_the_same_bits) {
  Random random(8);
  Card card;
  for (Numerics numerics : {Numerics::DLFLOAT16, Numerics::IEEE}) {
    for (DataFormat y : {kFp16, kFp32, kFp8}) {
      // All numbers of rows of the kernels, on the fly and unpacked; all numbers of their panels.
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
        const int64_t columns = 100 + 16 * (rows % 4);
        Problem problem = whole(rows, columns, 300, kFp16, y, kFp16);
        divide(problem, 1, 1, 1, 1 + rows % 2);
        fill_inputs(card, problem, random, numerics);
        // Special values among them, NaN of both signs too; or none, for the quick forms.
        for (int i = 0; i < (rows % 3 == 0 ? 0 : 20); ++i) {
          const uint16_t bits = static_cast<uint16_t>(0x7ffe | (random() & 0x8001));
          std::memcpy(card.argument(0) + problem.x.offset(0, 0, random() % 300), &bits, 2);
          std::memset(card.argument(1) + problem.y.offset(0, random() % 300, random() % columns),
                      random() & 1 ? 0xff : 0x7f, bytes_per_elem(y));
        }
        run(card, problem, numerics, Simd::PORTABLE);
        const auto expected = bytes_of_out(card, problem);
        for (Simd simd : {Simd::AVX2, Simd::AVX512}) {
          if (!has_simd(simd)) continue;
          clear_out(card, problem);
          run(card, problem, numerics, simd);
          CHECK(bytes_of_out(card, problem) == expected);
        }
      }
    }
  }
}

TEST(operands_may_lie_in_scratchpads_and_move_with_loops) {
  Random random(9);
  Card card(4);
  Problem problem = whole(20, 128, 64);
  divide(problem, 1, 4, 1, 1);
  fill_inputs(card, problem, random);
  run(card, problem);
  const auto expected = bytes_of_out(card, problem);
  // x and out of each core at the same place of its scratchpad; y in memory.
  std::vector<std::byte> x(card.argument(0), card.argument(0) + problem.x.bytes());
  for (int core = 0; core < 4; ++core) {
    std::memcpy(card.lx(core) + 1024, x.data(), x.size());
  }
  problem.x.space = problem.out.space = Space::LX;
  problem.x.begin = 1024;
  problem.out.begin = 65536;
  run(card, problem);
  for (int core = 0; core < 4; ++core) {
    const Slice& slice = problem.slices[core];
    for (int64_t r = slice.row; r < slice.row + slice.rows; ++r) {
      for (int64_t c = 0; c < 128; c += 64) {
        const int64_t at = problem.out.offset(0, r, c);
        CHECK(std::memcmp(card.lx(core) + 65536 + at, &expected[at], kStickBytes) == 0);
      }
    }
  }
  // A loop whose third iteration works on the third set of operands.
  problem = whole(20, 128, 64);
  problem.loops = 1;
  std::memcpy(card.argument(0) + 2 * problem.x.bytes(), x.data(), x.size());
  std::memcpy(card.argument(1) + 2 * problem.y.bytes(), card.argument(1), problem.y.bytes());
  const std::vector<int64_t> words = words_of(problem), loop = {2};
  WordReader reader(words, "mm");
  const MatmulStep step = parse_matmul(reader, head_of(problem));
  run_matmul(step, head_of(problem), card.context(Numerics::DLFLOAT16, loop));
  CHECK(std::memcmp(card.argument(2) + 2 * problem.out.bytes(), expected.data(), expected.size()) ==
        0);
}

TEST(large_row_lists_are_worked_off_in_rounds) {
  Random random(10);
  Card card;
  const Problem problem = whole(4300, 32, 1000, kFp8, kFp32, kFp32);  // more than 4 Mi floats of x
  fill_inputs(card, problem, random);
  run(card, problem);
  check_results(card, problem, Numerics::DLFLOAT16, random);
}

TEST(columns_behind_the_valid_ones_are_zeros_and_y_may_end_with_them) {
  Random random(11);
  Card card;
  for (int64_t rows : {1, 4, 6, 7, 40}) {
    for (int64_t columns : {1, 16, 17, 32, 64, 96, 130}) {
      for (DataFormat out : {kFp16, kFp32}) {
        Problem problem = whole(rows, columns, 70, kFp16, kFp16, out);
        // Sticks of y behind the valid columns are NaN, as is all that is not written.
        std::memset(card.argument(1), 0xff, problem.y.bytes() + 65536);
        std::memset(card.argument(2), 0xff, problem.out.bytes() + 4096);
        fill_inputs(card, problem, random);
        run(card, problem);
        check_results(card, problem, Numerics::DLFLOAT16, random);
        const int64_t end = sticks_of(columns, out) * elems_per_stick(out);
        for (int64_t c = (columns + 15) / 16 * 16; c < end; ++c) {
          const std::byte* at = card.argument(2) + problem.out.offset(0, rows - 1, c);
          CHECK_EQ(load_float(out, {}, at), 0.0f);
        }
        const std::byte* behind = card.argument(2) + problem.out.bytes();
        CHECK(std::all_of(behind, behind + 4096, [](std::byte b) { return b == std::byte{0xff}; }));
      }
    }
  }
}

// ---- Epilogues --------------------------------------------------------------------------------

namespace {

// What the instructions make of one element; `extras` are its values in the other operands.
float after_epilogue(const Problem& problem, float sum, const std::vector<float>& extras,
                     std::vector<float>& stored) {
  std::vector<float> reg(32);
  reg[0] = sum;
  for (const std::vector<int64_t>& in : problem.epilogue) {
    switch (in[0]) {
      case LOAD:
        reg[in[1]] = extras[in[2] - 1];
        break;
      case STORE:
        stored[in[1]] = reg[in[2]];
        break;
      case ROUND: {
        std::byte bytes[4];
        store_float(static_cast<DataFormat>(in[3]), {}, reg[in[2]], bytes);
        reg[in[1]] = load_float(static_cast<DataFormat>(in[3]), {}, bytes);
        break;
      }
      case ADD:
        reg[in[1]] = reg[in[2]] + reg[in[3]];
        break;
      case MUL:
        reg[in[1]] = reg[in[2]] * reg[in[3]];
        break;
      case RELU:
        reg[in[1]] = std::max(reg[in[2]], 0.0f);
        break;
      default:
        throw std::logic_error("the test does not know this opcode");
    }
  }
  return stored[0];
}

// Runs without the epilogue for the sums (float32 results), then with it, and compares all that is
// stored bit for bit with one element after the other.
void check_epilogue(Card& card, Problem problem, Random& random, Simd simd = best_simd()) {
  fill_inputs(card, problem, random);
  for (size_t i = 0; i < problem.extras.size(); ++i) {
    const Operand& operand = problem.extras[i].operand;
    std::memset(card.argument(3 + i), 0xff, operand.bytes());
    fill(card.argument(3 + i), operand, {}, random);
  }
  Problem plain = problem;
  plain.out.format = kFp32;
  plain.epilogue.clear();
  plain.extras.clear();
  run(card, plain, {}, simd);
  std::vector<float> sums;
  const Operand& out = problem.out;
  for (int64_t b = 0; b < out.batches; ++b) {
    for (int64_t r = 0; r < out.rows; ++r) {
      for (int64_t c = 0; c < out.columns; ++c) {
        sums.push_back(load_float(kFp32, {}, card.argument(2) + plain.out.offset(b, r, c)));
      }
    }
  }
  // A copy of what the epilogue loads, since it may store there.
  std::vector<std::vector<std::byte>> before;
  for (size_t i = 0; i < problem.extras.size(); ++i) {
    const std::byte* from = card.argument(3 + i);
    before.emplace_back(from, from + problem.extras[i].operand.bytes());
  }
  clear_out(card, problem);
  run(card, problem, {}, simd);
  const float* sum = sums.data();
  int64_t wrong = 0;
  for (int64_t b = 0; b < out.batches; ++b) {
    for (int64_t r = 0; r < out.rows; ++r) {
      for (int64_t c = 0; c < out.columns; ++c, ++sum) {
        std::vector<float> extras, stored(1 + problem.extras.size(), NAN);
        const auto place = [&](const Extra& extra) {
          return extra.operand.offset(extra.operand.batches == 1 ? 0 : b, extra.by_row ? r : 0,
                                      extra.form == OperandForm::SPLAT ? 0 : c);
        };
        for (size_t i = 0; i < problem.extras.size(); ++i) {
          const Extra& extra = problem.extras[i];
          extras.push_back(load_float(extra.operand.format, {}, &before[i][place(extra)]));
        }
        after_epilogue(problem, *sum, extras, stored);
        for (size_t i = 0; i < stored.size(); ++i) {
          if (std::isnan(stored[i])) continue;
          const DataFormat format = i == 0 ? out.format : problem.extras[i - 1].operand.format;
          const int64_t at = i == 0 ? out.offset(b, r, c) : place(problem.extras[i - 1]);
          std::byte expected[4] = {};
          store_float(format, {}, stored[i], expected);
          wrong += std::memcmp(card.argument(i == 0 ? 2 : 2 + i) + at, expected,
                               bytes_per_elem(format)) != 0;
        }
      }
    }
  }
  CHECK_EQ(wrong, 0);
}

// relu(round(round(sum) + bias)) * scale + residual, rounded each time.
Problem with_epilogue(int64_t rows, int64_t columns, int64_t depth, DataFormat format = kFp16) {
  Problem problem = whole(rows, columns, depth, kFp16, kFp16, format);
  problem.extras = {{{format, 1, 1, columns}, OperandForm::VECTOR, false},
                    {{kFp16, 1, 1, 1}, OperandForm::SPLAT, false},
                    {{format, 1, rows, columns}}};
  const auto number = static_cast<int64_t>(format);
  problem.epilogue = {{ROUND, 0, 0, number}, {LOAD, 1, 1},   {ADD, 0, 0, 1}, {ROUND, 0, 0, number},
                      {RELU, 0, 0},          {LOAD, 2, 2},   {MUL, 0, 0, 2}, {ROUND, 0, 0, number},
                      {LOAD, 1, 3},          {ADD, 3, 0, 1}, {STORE, 0, 3}};
  return problem;
}

}  // namespace

TEST(an_epilogue_gives_what_its_instructions_give_element_by_element) {
  Random random(12);
  Card card;
  for (int64_t rows : {1, 3, 6, 7, 8, 50, 200}) {
    for (int64_t columns : {16, 64, 100, 200}) {
      check_epilogue(card, with_epilogue(rows, columns, 70), random);
    }
  }
  check_epilogue(card, with_epilogue(30, 100, 70, kFp32), random);
  check_epilogue(card, with_epilogue(30, 100, 600), random, Simd::PORTABLE);
}

TEST(many_rows_give_the_bits_of_few) {
  Random random(16);
  Card card;
  for (int64_t depth : {100, 700}) {  // one block of depth, and several
    Problem problem = with_epilogue(450, 700, depth);
    for (bool epilogue : {false, true}) {
      if (!epilogue) problem.epilogue.clear();
      fill_inputs(card, problem, random);
      for (size_t i = 0; i < 3; ++i) {
        fill(card.argument(3 + i), problem.extras[i].operand, {}, random);
      }
      run(card, problem);
      const auto expected = bytes_of_out(card, problem);
      clear_out(card, problem);
      for (int64_t row = 0; row < 450; row += 50) {
        Problem part = problem;
        part.slices = {{0, 1, row, 50, 0, 700, 0, depth, 0}};
        run(card, part);
      }
      CHECK(bytes_of_out(card, problem) == expected);
      problem = with_epilogue(450, 700, depth);
    }
  }
}

TEST(an_epilogue_may_store_twice_and_in_place) {
  Random random(13);
  Card card;
  Problem problem = whole(20, 130, 64);
  problem.extras = {{{kFp16, 1, 20, 130}}};
  problem.epilogue = {{STORE, 0, 0}, {LOAD, 1, 1}, {ADD, 0, 0, 1}, {STORE, 1, 0}};
  check_epilogue(card, problem, random);
}

TEST(an_epilogue_follows_the_division_into_cores_and_batches) {
  Random random(14);
  Card card(12);
  for (int64_t depth_cores : {1, 2}) {
    for (int64_t batches : {1, 3}) {
      for (int64_t y_batches : {int64_t{1}, batches}) {
        Problem problem = with_epilogue(20, 130, 130);
        problem.x.batches = problem.out.batches = batches;
        problem.y.batches = y_batches;
        problem.extras[0].operand.batches = batches;  // a bias for each batch
        problem.extras[2].operand.batches = batches;
        divide(problem, 1, 2, 3, depth_cores);
        check_epilogue(card, problem, random);
      }
    }
  }
}

TEST(rows_that_the_epilogue_tells_apart_stay_apart) {
  Problem problem = whole(4, 64, 64);
  problem.x.batches = problem.out.batches = 3;
  problem.x.rows = problem.out.rows = 4;
  problem.slices[0].batches = 3;
  const auto entries = [&] {
    const std::vector<int64_t> words = words_of(problem);
    WordReader reader(words, "mm");
    return parse_matmul(reader, head_of(problem)).row_lists[0].rows.size();
  };
  CHECK_EQ(entries(), 1u);  // one stick: the rows of the batches lie one behind the other
  problem.extras = {{{kFp16, 1, 1, 64}, OperandForm::VECTOR, false}};
  problem.epilogue = {{LOAD, 1, 1}, {ADD, 0, 0, 1}, {STORE, 0, 0}};
  CHECK_EQ(entries(), 1u);  // and share the bias
  problem.extras[0].operand.batches = 3;
  CHECK_EQ(entries(), 3u);
}

TEST(epilogue_operands_may_lie_in_scratchpads) {
  Random random(15);
  Card card(4);
  Problem problem = whole(20, 128, 64);
  problem.extras = {{{kFp16, 1, 20, 128}}};
  problem.epilogue = {{LOAD, 1, 1}, {ADD, 0, 0, 1}, {STORE, 0, 0}};
  divide(problem, 1, 4, 1, 1);
  check_epilogue(card, problem, random);
  const auto expected = bytes_of_out(card, problem);
  for (int core = 0; core < 4; ++core) {
    std::memcpy(card.lx(core), card.argument(3), problem.extras[0].operand.bytes());
  }
  std::memset(card.argument(3), 0xff, problem.extras[0].operand.bytes());
  problem.extras[0].operand.space = Space::LX;
  clear_out(card, problem);
  run(card, problem);
  CHECK(bytes_of_out(card, problem) == expected);
}

TEST(malformed_epilogues_are_refused) {
  const auto parse = [](const Problem& problem) {
    const std::vector<int64_t> words = words_of(problem);
    WordReader reader(words, "mm");
    return parse_matmul(reader, head_of(problem));
  };
  Problem problem = with_epilogue(3, 64, 64);
  problem.extras[2].operand.format = kFp32;
  CHECK_THROWS(parse(problem), ProgramError, "operand 3 of its epilogue has 32 elements per stick");
  problem = with_epilogue(3, 64, 64);
  problem.extras[0].form = OperandForm::EXX2_MEAN;
  CHECK_THROWS(parse(problem), ProgramError, "the form of an operand of the epilogue is 2");
  problem = with_epilogue(3, 64, 64);
  problem.epilogue[2] = {ADD, 0, 0, 7};
  CHECK_THROWS(parse(problem), ProgramError, "it reads register 7 before it writes it");
  problem.epilogue[2] = {LOAD, 1, 4};
  CHECK_THROWS(parse(problem), ProgramError, "there is no operand 4");
  problem.epilogue[2] = {WIDEN, 1, 0};
  CHECK_THROWS(parse(problem), ProgramError, "widen or narrow");
}

TEST(nothing_to_multiply_gives_zero_and_no_rows_nothing) {
  Card card;
  Problem problem = whole(3, 64, 64);
  problem.slices[0].depth = 0;
  run(card, problem);
  for (int64_t r = 0; r < 3; ++r) {
    CHECK_EQ(load_float(kFp16, {}, card.argument(2) + problem.out.offset(0, r, 5)), 0.0f);
  }
  clear_out(card, problem);
  problem.slices[0] = {0, 1, 0, 0, 0, 64, 0, 64, 0};
  run(card, problem);
  CHECK(std::isnan(load_float(kFp16, {}, card.argument(2))));
}

TEST(malformed_steps_are_refused_by_name) {
  Problem problem = whole(3, 64, 64);
  const auto parse = [&](const std::vector<int64_t>& words) {
    WordReader reader(words, "mm");
    return parse_matmul(reader, head_of(problem));
  };
  std::vector<int64_t> words = words_of(problem);
  words[2] = static_cast<int64_t>(kFp8);
  CHECK_THROWS(parse(words), ProgramError, "step 'mm' of the program is malformed");
  words = words_of(problem);
  words[5] = -1;
  CHECK_THROWS(parse(words), ProgramError, "an extent is -1");
  words = words_of(problem);
  words.pop_back();
  CHECK_THROWS(parse(words), ProgramError, "it ends too early");
  divide(problem, 1, 1, 1, 2);
  problem.slices[0].group = problem.slices[1].group = 0;
  problem.slices[1].rows = 2;
  problem.groups = true;
  CHECK_THROWS(parse(words_of(problem)), ProgramError, "has other extents");
}
