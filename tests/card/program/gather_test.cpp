// Gathers of sticks against a loop over all points.
#include "program/gather.h"

#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/check.h"

using namespace spyre::card;

namespace {

using Words = std::vector<int64_t>;

constexpr int64_t kStick = kStickBytes;

// An embedding: out[stick, token] = value[stick, index[token]], tokens divided among cores.
class Embedding {
 public:
  Embedding(int64_t rows, int64_t sticks, int64_t tokens, int cores)
      : rows(rows), sticks(sticks), tokens(tokens), cores(cores) {
    std::mt19937_64 random(7);
    for (int64_t i = 0; i < rows * sticks * kStick; ++i) value()[i] = std::byte(random());
    for (int64_t i = 0; i < tokens; ++i) {
      set_index(i, static_cast<int32_t>(random() % (2 * rows)) - static_cast<int32_t>(rows));
    }
  }

  std::byte* value() { return memory_.host(value_); }
  std::byte* out() { return memory_.host(out_); }
  int32_t index(int64_t token) {
    int32_t result;
    std::memcpy(&result, index_at(token), 4);
    return result;
  }
  void set_index(int64_t token, int32_t value) { std::memcpy(index_at(token), &value, 4); }

  Words words() const {
    Words words = {2};
    for (int c = 0; c < cores; ++c) append(words, {sticks, end(c) - end(c - 1)});
    append(words, {rows, kStick});
    append(words, {rows * kStick, 0, 1, 0});
    for (int c = 0; c < cores; ++c) words.push_back(0);
    append(words, {0, 0, 1, kIndexStickStride, 1, 1});
    for (int c = 0; c < cores; ++c) words.push_back(0);
    for (int c = 0; c < cores; ++c) words.push_back(end(c - 1));
    append(words, {tokens * kStick, kStick, 1, 2});
    for (int c = 0; c < cores; ++c) words.push_back(end(c - 1) * kStick);
    return words;
  }

  void run() {
    const Words all = words();
    WordReader reader(all, "embedding");
    const StepHead head = {4, cores, 0, "embedding", 0};
    const GatherStep step = parse_gather(reader, head);
    CHECK(reader.done());
    const std::vector<Address> arguments = {value_, index_, out_};
    static ThreadPool pool(2);
    run_gather(step, head, {{memory_, pool, Numerics::DLFLOAT16, {}}, arguments, {}});
  }

  void check() {
    for (int64_t s = 0; s < sticks; ++s) {
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t row = index(t) < 0 ? index(t) + rows : index(t);
        CHECK(std::memcmp(out() + (s * tokens + t) * kStick, value() + (s * rows + row) * kStick,
                          kStick) == 0);
      }
    }
  }

  const int64_t rows, sticks, tokens;
  const int cores;

 private:
  static constexpr int64_t kIndexStickStride = 3 * kStick;  // sticks of indices need not touch

  static void append(Words& words, std::initializer_list<int64_t> values) {
    words.insert(words.end(), values);
  }
  // Tokens of cores 0 ... core.
  int64_t end(int core) const { return tokens * (core + 1) / cores; }
  std::byte* index_at(int64_t token) {
    return memory_.host(index_) + token / 32 * kIndexStickStride + token % 32 * 4;
  }

  Memory memory_{0, 64 << 20};
  Address value_ = memory_.allocate(8 << 20)->address;
  Address index_ = memory_.allocate(8 << 20)->address;
  Address out_ = memory_.allocate(8 << 20)->address;
};

}  // namespace

TEST(tokens_select_rows_on_any_number_of_cores) {
  for (int64_t tokens : {1, 31, 32, 33, 100, 129}) {
    for (int cores : {1, 3, 5}) {
      Embedding embedding(10, 3, tokens, cores);
      embedding.run();
      embedding.check();
    }
  }
}

TEST(large_gathers_are_shared_among_threads) {
  Embedding embedding(1000, 4, 10001, 8);
  embedding.run();
  embedding.check();
}

TEST(the_ends_of_the_range_are_allowed) {
  Embedding embedding(10, 1, 2, 1);
  embedding.set_index(0, 9);
  embedding.set_index(1, -10);
  embedding.run();
  embedding.check();
}

TEST(an_index_out_of_bounds_is_an_error_with_the_name_of_the_step) {
  Embedding embedding(10, 2, 5000, 4);
  embedding.set_index(4711, 12);
  CHECK_THROWS(embedding.run(), std::runtime_error,
               "step 'embedding': index 12 is out of bounds for dimension with size 10");
  embedding.set_index(4711, 10);
  CHECK_THROWS(embedding.run(), std::runtime_error, "index 10 is out of bounds");
  embedding.set_index(4711, -11);
  CHECK_THROWS(embedding.run(), std::runtime_error, "index -11 is out of bounds");
}

TEST(without_dimensions_one_stick_is_gathered_from_scratchpads_too) {
  Memory memory(0, 1 << 20);
  std::byte* lx = memory.host(memory.allocate(4096)->address);
  for (int i = 0; i < 4096; ++i) lx[i] = std::byte(i / 128);
  const int32_t index = 3;
  std::memcpy(lx + 1024, &index, 4);
  const Words words = {0, 8, 128, 2, 0, 0, -1, 0, 2, 0, 1024, 0, 2, 0, 2048};
  WordReader reader(words, "gather");
  const StepHead head = {4, 1, 0, "gather", 0};
  const GatherStep step = parse_gather(reader, head);
  CHECK(reader.done());
  ThreadPool pool(1);
  run_gather(step, head, {{memory, pool, Numerics::DLFLOAT16, std::span(&lx, 1)}, {}, {}});
  CHECK(std::memcmp(lx + 2048, lx + 3 * 128, 128) == 0);
}

TEST(a_scatter_writes_rows_and_leaves_the_others_alone) {
  // out[stick, index[token]] = value[stick, token] on two cores, two tokens each.
  constexpr int64_t kRows = 7, kSticks = 3, kTokens = 4;
  Memory memory(0, 1 << 20);
  const Address value = memory.allocate(kSticks * kTokens * kStick)->address;
  const Address index = memory.allocate(kStick)->address;
  const Address out = memory.allocate(kSticks * kRows * kStick)->address;
  const std::vector<int32_t> rows = {5, 0, -1, 3};
  std::memcpy(memory.host(index), rows.data(), rows.size() * 4);
  for (int64_t i = 0; i < kSticks * kTokens * kStick; ++i) {
    memory.host(value)[i] = std::byte(i / kStick + 1);
  }
  std::memset(memory.host(out), 0xee, kSticks * kRows * kStick);
  const Words words = {2,      kSticks, 2, kSticks, 2,          kRows, kStick, kTokens * kStick,
                       kStick, 1,       0, 0,       2 * kStick, 0,     0,      1,
                       kStick, 1,       1, 0,       0,          0,     2,      kRows * kStick,
                       0,      1,       2, 0,       0};
  WordReader reader(words, "scatter");
  const StepHead head = {8, 2, 0, "scatter", 0};
  const GatherStep step = parse_scatter(reader, head);
  CHECK(reader.done());
  ThreadPool pool(2);
  const std::vector<Address> arguments = {value, index, out};
  run_gather(step, head, {{memory, pool, Numerics::DLFLOAT16, {}}, arguments, {}});
  const std::vector<int64_t> token_of_row = {1, -1, -1, 3, -1, 0, 2};
  for (int64_t s = 0; s < kSticks; ++s) {
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t token = token_of_row[row];
      const std::byte expected = token < 0 ? std::byte(0xee) : std::byte(s * kTokens + token + 1);
      for (int64_t i = 0; i < kStick; ++i) {
        CHECK(memory.host(out)[(s * kRows + row) * kStick + i] == expected);
      }
    }
  }
  const int32_t beyond = 7;
  std::memcpy(memory.host(index) + 8, &beyond, 4);
  CHECK_THROWS(run_gather(step, head, {{memory, pool, Numerics::DLFLOAT16, {}}, arguments, {}}),
               std::runtime_error, "index 7 is out of bounds for dimension with size 7");
}

TEST(malformed_gathers_are_refused) {
  Embedding embedding(10, 2, 5, 1);
  const StepHead head = {4, 1, 0, "embedding", 0};
  Words words = embedding.words();
  words[2] = -5;
  WordReader negative(words, "embedding");
  CHECK_THROWS(parse_gather(negative, head), ProgramError, "an extent is -5");
  words = embedding.words();
  words.pop_back();
  WordReader shorter(words, "embedding");
  CHECK_THROWS(parse_gather(shorter, head), ProgramError, "it ends too early");
}
