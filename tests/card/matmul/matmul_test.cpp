// Matrix products against sums in double, element by element and stick by stick.
#include "support/matmul_problem.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <limits>

using namespace spyre::card;

namespace {

// As torch.set_flush_denormal does it, for this thread.
void flush_subnormals([[maybe_unused]] bool flush) {
#if defined(__x86_64__)
  constexpr unsigned kFlush = 0x8040;
  _mm_setcsr(flush ? _mm_getcsr() | kFlush : _mm_getcsr() & ~kFlush);
#endif
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

// With few rows of x codes of y are multiplied without setting their exponents right, which goes
// wrong for numbers that the kernel has to notice.
TEST(few_rows_have_the_same_bits_whatever_the_magnitudes_are) {
  Random random(11);
  Card card;
  constexpr int64_t kColumns = 130;
  struct Kind {
    float x;     // magnitude of one number in a hundred
    uint16_t y;  // code of one number in a thousand
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Kind& kind :
       {Kind{1.0f, 0x3e00}, Kind{1.0f, 0x8001}, Kind{1.0f, 0x01ff}, Kind{1.0f, 0x7ffd},
        Kind{1.0f, 0x7ffe}, Kind{1.0f, 0xffff}, Kind{0x1p63f, 0x3e00}, Kind{0x1p70f, 0x3e00},
        Kind{0x1p-70f, 0x3e00}, Kind{0x1p-120f, 0x0201}, Kind{0x1.8p-140f, 0x3e00},
        Kind{kInfinity, 0x3e00}, Kind{kInfinity, 0x0000}, Kind{std::nanf(""), 0x3e00}}) {
    for (int64_t rows : {1, 2, 5}) {
      for (const int64_t depth : {700, 1}) {
        const bool alone = rows == 2 || depth == 1;  // nothing beside it
        Problem problem = whole(rows, kColumns, depth, kFp32, kFp16, kFp32);
        fill_inputs(card, problem, random);
        for (int64_t k = 0; k < depth; ++k) {
          for (int64_t r = 0; r < rows; ++r) {
            if (!alone && random() % 100 != 0) continue;
            store_float(kFp32, {}, random() & 1 ? kind.x : -kind.x,
                        card.argument(0) + problem.x.offset(0, r, k));
          }
          for (int64_t n = 0; n < kColumns; ++n) {
            if (!alone && random() % 1000 != 0) continue;
            std::memcpy(card.argument(1) + problem.y.offset(0, k, n), &kind.y, 2);
          }
        }
        run(card, problem, Numerics::DLFLOAT16, Simd::PORTABLE);
        const auto expected = bytes_of_out(card, problem);
        if (!has_simd(Simd::AVX512)) continue;
        for (bool flushes : {false, true}) {
          if (flushes && kind.x != 1.0f) continue;  // rows of x then are others
          clear_out(card, problem);
          pool().resize(flushes ? 1 : 2);
          flush_subnormals(flushes);
          run(card, problem, Numerics::DLFLOAT16, Simd::AVX512);
          flush_subnormals(false);
          pool().resize(2);
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
  words[6] = -1;
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
