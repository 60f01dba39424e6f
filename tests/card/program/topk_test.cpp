// Topk against a stable sort of each lane.
#include "program/topk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "support/check.h"

using namespace spyre::card;

namespace {

using Words = std::vector<int64_t>;

constexpr DataFormat kFp16 = DataFormat::SEN169_FP16;
constexpr DataFormat kFp32 = DataFormat::IEEE_FP32;
constexpr DataFormat kInt32 = DataFormat::IEEE_INT32;

// Input [count][rows][sticks], output [k][rows][sticks]; rows are divided among cores.
struct Case {
  DataFormat format;
  int64_t count, k, rows, elements;  // elements along the sticks
  bool largest, indices;
  int cores;
  DataFormat output_format() const { return indices ? kInt32 : format; }
  int64_t lanes() const {
    return std::max(elems_per_stick(format), elems_per_stick(output_format()));
  }
  int64_t groups() const { return (elements + lanes() - 1) / lanes(); }
  int64_t sticks(DataFormat of) const {
    return (elements + elems_per_stick(of) - 1) / elems_per_stick(of);
  }
  int64_t row_end(int core) const { return rows * (core + 1) / cores; }
};

void put_operand(Words& words, const Case& c, DataFormat format, int64_t argument) {
  const int64_t sticks = c.sticks(format);
  const int64_t per_group = c.lanes() / elems_per_stick(format);
  words.insert(words.end(), {static_cast<int64_t>(format), 0, sticks * kStickBytes,
                             per_group * kStickBytes, c.rows * sticks * kStickBytes, kStickBytes});
  for (int core = 0; core < c.cores; ++core) words.push_back(sticks);
  words.insert(words.end(), {1, argument});
  for (int core = 0; core < c.cores; ++core) {
    words.push_back(c.row_end(core - 1) * sticks * kStickBytes);
  }
}

Words words_of(const Case& c) {
  Words words = {c.lanes(), 2, 1};
  for (int core = 0; core < c.cores; ++core) {
    words.insert(words.end(), {c.row_end(core) - c.row_end(core - 1), c.groups()});
  }
  words.insert(words.end(), {c.count, c.k, c.largest});
  put_operand(words, c, c.format, 0);
  words.push_back(c.indices);
  put_operand(words, c, c.output_format(), 1);
  return words;
}

std::byte* element(std::byte* base, const Case& c, DataFormat format, int64_t i, int64_t row,
                   int64_t e) {
  const int64_t per_stick = elems_per_stick(format), sticks = c.sticks(format);
  return base + ((i * c.rows + row) * sticks + e / per_stick) * kStickBytes +
         e % per_stick * bytes_per_elem(format);
}

// As PyTorch orders: NaN is the largest.
bool is_larger(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

void check_case(const Case& c, uint64_t seed) {
  static Memory memory(0, 64 << 20);
  static const Address input = memory.allocate(16 << 20)->address;
  static const Address output = memory.allocate(16 << 20)->address;
  static ThreadPool pool(2);
  std::mt19937_64 random(seed);
  std::byte *in = memory.host(input), *out = memory.host(output);
  const int64_t out_bytes = c.k * c.rows * c.sticks(c.output_format()) * kStickBytes;
  std::memset(in, 0xff, c.count * c.rows * c.sticks(c.format) * kStickBytes);
  std::memset(out, 0xee, out_bytes + kStickBytes);
  const bool is_float = c.format != kInt32;
  for (int64_t i = 0; i < c.count * c.rows * c.elements; ++i) {
    float value = static_cast<float>(static_cast<int64_t>(random() % 41) - 20);  // with repetitions
    if (is_float && random() % 50 == 0) value = random() % 2 ? NAN : -NAN;
    if (is_float && random() % 50 == 0) value = random() % 2 ? -0.0f : -INFINITY;
    const uint32_t lane = is_float ? std::bit_cast<uint32_t>(value)
                                   : static_cast<uint32_t>(static_cast<int32_t>(value));
    store_element(c.format, Numerics::DLFLOAT16, lane,
                  element(in, c, c.format, i / (c.rows * c.elements), i / c.elements % c.rows,
                          i % c.elements));
  }
  const Words words = words_of(c);
  WordReader reader(words, "topk");
  const StepHead head = {5, c.cores, 0, "topk", 0};
  const TopkStep step = parse_topk(reader, head);
  CHECK(reader.done());
  const std::vector<Address> arguments = {input, output};
  run_topk(step, head, {{memory, pool, Numerics::DLFLOAT16, {}}, arguments, {}});

  std::vector<float> values(c.count);
  std::vector<int32_t> order(c.count);
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t e = 0; e < c.elements; ++e) {
      for (int64_t i = 0; i < c.count; ++i) {
        const uint32_t lane =
            load_element(c.format, Numerics::DLFLOAT16, element(in, c, c.format, i, row, e));
        values[i] =
            is_float ? std::bit_cast<float>(lane) : static_cast<float>(static_cast<int32_t>(lane));
      }
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return c.largest ? is_larger(values[a], values[b]) : is_larger(values[b], values[a]);
      });
      for (int64_t i = 0; i < c.k; ++i) {
        const DataFormat format = c.output_format();
        const std::byte* is = element(out, c, format, i, row, e);
        const std::byte* expected = element(in, c, format, order[i], row, e);
        if (c.indices) {
          CHECK_EQ(load_element(format, Numerics::DLFLOAT16, is), order[i]);
        } else {
          CHECK(std::memcmp(is, expected, bytes_per_elem(format)) == 0);
        }
      }
    }
  }
  CHECK(std::to_integer<int>(out[out_bytes]) == 0xee);
}

}  // namespace

TEST(values_and_indices_are_sorted_and_stable) {
  uint64_t seed = 1;
  for (DataFormat format : {kFp16, kFp32, kInt32}) {
    for (bool largest : {true, false}) {
      for (bool indices : {true, false}) {
        for (int64_t elements : {1, 63, 64, 65, 100}) {
          check_case({format, 20, 7, 3, elements, largest, indices, 2}, seed++);
        }
      }
    }
  }
}

TEST(k_may_be_one_or_all) {
  check_case({kFp16, 1, 1, 1, 5, true, true, 1}, 100);
  check_case({kFp16, 129, 1, 2, 64, true, false, 1}, 101);
  check_case({kFp16, 129, 129, 2, 64, false, true, 1}, 102);
}

TEST(many_groups_are_shared_among_threads) {
  check_case({kFp16, 100, 4, 37, 129, true, true, 4}, 103);
}

TEST(malformed_topk_is_refused) {
  const Case c = {kFp16, 20, 21, 3, 64, true, true, 1};
  const Words words = words_of(c);
  WordReader reader(words, "topk");
  CHECK_THROWS(parse_topk(reader, {5, 1, 0, "topk", 0}), ProgramError, "k is 21");
}
