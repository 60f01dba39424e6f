// What follows the sums of a matrix product, against the same on one element after the other.
#include <stdexcept>

#include "support/matmul_problem.h"

using namespace spyre::card;

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
