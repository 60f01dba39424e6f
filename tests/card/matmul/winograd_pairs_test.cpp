// Sums by pairs: as exact as sums term by term, for numbers of all kinds, and the same wherever a
// row and a column meet.
//
// Results are float32, so that nothing is hidden by rounding.
#include "matmul/winograd_pairs.h"

#include <functional>

#include "support/matmul_problem.h"

using namespace spyre::card;

namespace {

bool has_pairs() { return has_simd(Simd::AVX512) && pair_kernels(Simd::AVX512) != nullptr; }

using Value = std::function<float(int64_t row, int64_t column)>;

void write(std::byte* begin, const Operand& operand, const Value& value) {
  for (int64_t r = 0; r < operand.rows; ++r) {
    for (int64_t c = 0; c < operand.columns; ++c) {
      store_float(operand.format, {}, value(r, c), begin + operand.offset(0, r, c));
    }
  }
}

Problem floats(int64_t rows, int64_t columns, int64_t depth) {
  return whole(rows, columns, depth, kFp16, kFp16, kFp32);
}

std::vector<float> multiply(Card& card, const Problem& problem, bool pairs) {
  card.add_pairs(pairs);
  clear_out(card, problem);
  run(card, problem);
  std::vector<float> results;
  for (int64_t r = 0; r < problem.out.rows; ++r) {
    for (int64_t c = 0; c < problem.out.columns; ++c) {
      results.push_back(load_float(kFp32, {}, card.argument(2) + problem.out.offset(0, r, c)));
    }
  }
  return results;
}

std::vector<double> in_double(Card& card, const Problem& problem) {
  std::vector<double> results;
  double magnitude;
  for (int64_t r = 0; r < problem.out.rows; ++r) {
    for (int64_t c = 0; c < problem.out.columns; ++c) {
      results.push_back(exact(problem, card.argument(0), card.argument(1), {}, 0, r, c, magnitude));
    }
  }
  return results;
}

// The root of the mean square of a difference, relative to that of what is expected.
double distance(const std::vector<float>& is, const std::vector<double>& expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < is.size(); ++i) {
    error += (is[i] - expected[i]) * (is[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(error / size);
}

struct Kind {
  const char* name;
  Value x, y;
};

std::vector<Kind> kinds(Random& random) {
  static std::normal_distribution<float> normal;
  static std::uniform_real_distribution<float> uniform;
  const Value any = [&random](int64_t, int64_t) { return normal(random); };
  const Value weights = [&random](int64_t, int64_t) { return 0.04f * normal(random); };
  const Value positive = [&random](int64_t, int64_t) { return uniform(random); };
  return {
      {"any", any, weights},
      {"positive", positive, weights},
      {"all positive", positive, positive},
      {"columns that stand out",
       [&random](int64_t, int64_t k) { return (k % 50 == 7 ? 100 : 1) * normal(random); }, weights},
      {"rows of all sizes",
       [&random](int64_t r, int64_t) {
         return std::ldexp(normal(random), static_cast<int>(r % 40) - 20);
       },
       [&random](int64_t, int64_t c) {
         return std::ldexp(normal(random), static_cast<int>(c % 20) - 15);
       }},
      {"half of them zeros", [&random](int64_t, int64_t) { return std::max(0.0f, normal(random)); },
       weights},
      {"few that are not zero",
       [&random](int64_t r, int64_t k) { return k % 97 == r % 97 ? normal(random) : 0; }, any},
  };
}

}  // namespace

TEST(sums_by_pairs_are_nearly_as_exact_as_sums_term_by_term) {
  if (!has_pairs()) return;
  Random random(1);
  Card card;
  for (int64_t depth : {64, 384, 1536}) {
    const Problem problem = floats(70, 80, depth);
    for (const Kind& kind : kinds(random)) {
      write(card.argument(0), problem.x, kind.x);
      write(card.argument(1), problem.y, kind.y);
      const auto expected = in_double(card, problem);
      const double terms = distance(multiply(card, problem, false), expected);
      const double pairs = distance(multiply(card, problem, true), expected);
      // DLFloat16 rounds by up to 2^-10.
      const bool good = pairs <= 8 * terms + 0x1p-24 && pairs <= 0x1p-19;
      CHECK(good);
      if (!good) std::printf("%s, %d deep: %g, %g\n", kind.name, int(depth), pairs, terms);
    }
  }
}

TEST(pairs_are_used) {
  if (!has_pairs()) return;
  Random random(2);
  Card card;
  const Problem problem = floats(64, 64, 384);
  fill_inputs(card, problem, random);
  CHECK(multiply(card, problem, true) != multiply(card, problem, false));
}

TEST(small_products_and_odd_or_short_sums_are_added_term_by_term) {
  if (!has_pairs()) return;
  Random random(3);
  Card card;
  for (auto [large, depth] : {std::pair{false, 128}, {true, 62}, {true, 129}}) {
    Problem problem = floats(64, 64, depth);
    problem.large = large;
    fill_inputs(card, problem, random);
    CHECK(multiply(card, problem, true) == multiply(card, problem, false));
  }
}

TEST(all_sizes_of_the_last_rows_panels_and_blocks_of_depth) {
  if (!has_pairs()) return;
  Random random(4);
  Card card;
  card.add_pairs(true);
  for (int64_t rows : {64, 65, 71, 100, 450}) {
    for (int64_t columns : {64, 80, 100, 130}) {
      for (int64_t depth : {64, 66, 100, 512, 700}) {
        for (DataFormat out : {kFp16, kFp32}) {
          Problem problem = whole(rows, columns, depth, kFp16, kFp16, out);
          std::memset(card.argument(0), 0xff, problem.x.bytes());
          std::memset(card.argument(1), 0xff, problem.y.bytes() + 4096);
          fill_inputs(card, problem, random);
          run(card, problem);
          check_results(card, problem, Numerics::DLFLOAT16, random);
        }
      }
    }
  }
}

TEST(sums_of_small_integers_are_exact) {
  if (!has_pairs()) return;
  Random random(5);
  Card card;
  const Problem problem = floats(72, 96, 512);
  const Value integer = [&](int64_t, int64_t) {
    return static_cast<float>(static_cast<int64_t>(random() % 33) - 16);
  };
  write(card.argument(0), problem.x, integer);
  write(card.argument(1), problem.y, integer);
  const auto expected = in_double(card, problem);
  const auto is = multiply(card, problem, true);
  CHECK(std::equal(is.begin(), is.end(), expected.begin()));
}

TEST(what_has_nothing_in_common_gives_zero) {
  if (!has_pairs()) return;
  Random random(6);
  Card card;
  const Problem problem = floats(72, 96, 384);
  std::normal_distribution<float> normal;
  // Pairs of x and pairs of y in turns: each has products that must cancel.
  write(card.argument(0), problem.x,
        [&](int64_t, int64_t k) { return k % 4 < 2 ? normal(random) : 0; });
  write(card.argument(1), problem.y,
        [&](int64_t k, int64_t) { return k % 4 < 2 ? 0 : normal(random); });
  const auto is = multiply(card, problem, true);
  CHECK(std::all_of(is.begin(), is.end(), [](float value) { return value == 0; }));
}

TEST(rows_that_select_give_what_they_select) {
  if (!has_pairs()) return;
  Random random(7);
  Card card;
  std::normal_distribution<float> normal;
  const Problem problem = floats(128, 96, 128);
  // Numbers of all sizes, so that small ones are selected beside large ones.
  write(card.argument(1), problem.y, [&](int64_t k, int64_t) {
    return std::ldexp(normal(random), static_cast<int>(k % 30) - 25);
  });
  write(card.argument(0), problem.x,
        [](int64_t r, int64_t k) { return k == 127 - r ? 1.0f : 0.0f; });
  const auto is = multiply(card, problem, true);
  for (int64_t r = 0; r < 128; ++r) {
    for (int64_t c = 0; c < 96; ++c) {
      CHECK_EQ(is[r * 96 + c],
               load_float(kFp16, {}, card.argument(1) + problem.y.offset(0, 127 - r, c)));
    }
  }
}

TEST(a_number_that_stands_out_of_small_ones_is_added_term_by_term) {
  if (!has_pairs()) return;
  Random random(11);
  Card card;
  std::uniform_real_distribution<float> uniform(0.5f, 0.99f);
  const Problem problem = floats(64, 64, 512);
  write(card.argument(0), problem.x,
        [](int64_t r, int64_t k) { return k == r ? 1.0f : (k % 2 ? 0x1p-12f : -0x1p-12f); });
  write(card.argument(1), problem.y, [&](int64_t, int64_t) { return uniform(random); });
  CHECK(multiply(card, problem, true) == multiply(card, problem, false));
}

TEST(powers_of_two_change_nothing_else) {
  if (!has_pairs()) return;
  Random random(8);
  Card card;
  std::normal_distribution<float> normal;
  const Problem problem = floats(64, 64, 256);
  // Numbers of the middle of DLFloat16, so that none leaves it.
  std::vector<float> x(64 * 256), y(256 * 64);
  for (float& value : x) value = std::copysign(1 + std::fabs(normal(random)), normal(random));
  for (float& value : y) value = std::copysign(1 + std::fabs(normal(random)), normal(random));
  const auto scaled = [&](int by_row, int by_column) {
    write(card.argument(0), problem.x, [&](int64_t r, int64_t k) {
      return std::ldexp(x[r * 256 + k], static_cast<int>(r % 3) * by_row);
    });
    write(card.argument(1), problem.y, [&](int64_t k, int64_t c) {
      return std::ldexp(y[k * 64 + c], static_cast<int>(c % 2) * by_column);
    });
    return multiply(card, problem, true);
  };
  const auto expected = scaled(0, 0);
  const auto is = scaled(-9, 20);
  for (int64_t r = 0; r < 64; ++r) {
    for (int64_t c = 0; c < 64; ++c) {
      CHECK_EQ(is[r * 64 + c],
               std::ldexp(expected[r * 64 + c], static_cast<int>(r % 3 * -9 + c % 2 * 20)));
    }
  }
}

TEST(infinities_and_nans_stay_in_their_rows_and_columns) {
  if (!has_pairs()) return;
  Random random(9);
  Card card;
  const Problem problem = floats(72, 80, 384);
  fill_inputs(card, problem, random);
  const auto before = multiply(card, problem, true);
  const auto put_code = [&](int argument, const Operand& operand, int64_t r, int64_t c,
                            uint16_t code) {
    std::memcpy(card.argument(argument) + operand.offset(0, r, c), &code, 2);
  };
  const auto infinity = static_cast<uint16_t>(Dlfloat16::kInfinity);
  put_code(0, problem.x, 3, 100, infinity);
  put_code(0, problem.x, 9, 5, static_cast<uint16_t>(Dlfloat16::kNan));
  put_code(1, problem.y, 40, 20, static_cast<uint16_t>(infinity | Dlfloat16::kSign));
  const auto terms = multiply(card, problem, false), is = multiply(card, problem, true);
  for (int64_t r = 0; r < 72; ++r) {
    for (int64_t c = 0; c < 80; ++c) {
      const size_t i = r * 80 + c;
      const bool special = r == 3 || r == 9 || c == 20;
      CHECK(std::bit_cast<uint32_t>(is[i]) ==
            std::bit_cast<uint32_t>(special ? terms[i] : before[i]));
    }
  }
}

TEST(neither_threads_nor_cores_change_a_bit) {
  if (!has_pairs()) return;
  Random random(10);
  Card card;
  card.add_pairs(true);
  for (int64_t depth : {300, 900}) {
    Problem problem = whole(700, 300, depth);
    fill_inputs(card, problem, random);
    // Some rows that are not added by pairs.
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t r : {5, 6, 300}) {
        store_float(kFp16, {}, k % 31 ? 0 : 1, card.argument(0) + problem.x.offset(0, r, k));
      }
    }
    run(card, problem);
    const auto expected = bytes_of_out(card, problem);
    for (auto [m, n] : {std::pair{1, 3}, {4, 1}, {7, 2}, {350, 1}}) {
      for (int threads : {1, 2, 5}) {
        pool().resize(threads);
        divide(problem, 1, m, n, 1);
        clear_out(card, problem);
        run(card, problem);
        CHECK(bytes_of_out(card, problem) == expected);
      }
    }
    // Few rows of it alone, in other places of their blocks.
    for (auto [row, rows] : {std::pair{0, 1}, {3, 5}, {6, 8}, {250, 101}}) {
      problem.slices = {{0, 1, row, rows, 0, 300, 0, depth, 0}};
      clear_out(card, problem);
      run(card, problem);
      const auto is = bytes_of_out(card, problem);
      for (int64_t r = row; r < row + rows; ++r) {
        const int64_t at = problem.out.offset(0, r, 64);
        CHECK(std::memcmp(&is[at], &expected[at], kStickBytes) == 0);
      }
    }
    pool().resize(2);
  }
}
