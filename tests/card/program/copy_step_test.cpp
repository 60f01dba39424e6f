// Copy steps against the slow model of support/storage_model.h, with views divided among cores.
#include "program/copy_step.h"

#include <stdexcept>
#include <string>

#include "support/check.h"
#include "support/storage_model.h"

using namespace model;

namespace {

constexpr DataFormat kFp16 = DataFormat::SEN169_FP16;

using Words = std::vector<int64_t>;

ThreadPool& pool() {
  static ThreadPool shared(2);
  return shared;
}

Placement ordered(const Dims& sizes, const Dims& order, DataFormat format = kFp16) {
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
  return {make_layout(sizes, strides, format, order), sizes, strides};
}

// One side of a copy and what each core sees of it.
struct Side {
  Placement placement;
  View view;
};

// A box of the view.
struct Part {
  Dims begin, sizes;
};

void append(Words& words, const Dims& values) {
  words.insert(words.end(), values.begin(), values.end());
}

void put_side(Words& words, const Side& side, const std::vector<Part>& parts, Space space,
              int64_t argument, int64_t offset) {
  const StickLayout& layout = side.placement.layout;
  append(words, {static_cast<int64_t>(layout.format), static_cast<int64_t>(layout.arrangement),
                 static_cast<int64_t>(layout.device_size.size())});
  append(words, layout.device_size);
  append(words, layout.stride_map);
  words.push_back(static_cast<int64_t>(side.placement.sizes.size()));
  append(words, side.placement.sizes);
  append(words, side.placement.strides);
  words.push_back(static_cast<int64_t>(side.view.strides.size()));
  append(words, side.view.strides);
  for (const Part& part : parts) {
    words.push_back(side.view.offset + dot(part.begin, side.view.strides));
    append(words, part.sizes);
  }
  append(words, {static_cast<int64_t>(space), argument});
  for (size_t c = 0; c < parts.size(); ++c) words.push_back(offset);
}

Words words_of(const Side& src, const Side& dst, const std::vector<Part>& parts) {
  Words words;
  put_side(words, src, parts, Space::ARGUMENT, 0, 256);
  put_side(words, dst, parts, Space::ARGUMENT, 1, 0);
  return words;
}

StepHead head_of(const std::vector<Part>& parts) {
  return {3, static_cast<int>(parts.size()), 0, "copy", 0};
}

CopyStep parse(const Words& words, const StepHead& head) {
  WordReader reader(words, "copy");
  CopyStep step = parse_copy(reader, head);
  CHECK(reader.done());
  return step;
}

std::vector<Part> whole(const View& view) { return {{Dims(view.sizes.size(), 0), view.sizes}}; }

// Cuts each part in two at a random place of a random dimension, until there are enough.
std::vector<Part> divided(const View& view, size_t most, Random& random) {
  std::vector<Part> parts = whole(view);
  while (parts.size() < most && !view.sizes.empty()) {
    const size_t i = pick(random, 0, static_cast<int64_t>(parts.size()) - 1);
    const size_t d = pick(random, 0, static_cast<int64_t>(view.sizes.size()) - 1);
    Part rest = parts[i];
    const int64_t cut = pick(random, 0, rest.sizes[d]);
    rest.begin[d] += cut;
    rest.sizes[d] -= cut;
    parts[i].sizes[d] = cut;
    parts.push_back(rest);
  }
  return parts;
}

// Card memory for both sides.
class Memories {
 public:
  std::byte* source() { return memory_.host(arguments_[0]) + 256; }
  std::byte* destination() { return memory_.host(arguments_[1]); }
  RunContext context(std::span<std::byte* const> lx = {}) {
    return {{memory_, pool(), Numerics::DLFLOAT16, lx}, arguments_, {}};
  }

 private:
  Memory memory_{0, 64 << 20};
  std::vector<Address> arguments_ = {memory_.allocate(16 << 20)->address,
                                     memory_.allocate(16 << 20)->address};
};

// Runs a step and compares all bytes of the destination with what the model says.
CopyStep check_copy(const Side& src, const Side& dst, const std::vector<Part>& parts,
                    Random& random) {
  static Memories memories;
  const int64_t elem = bytes_per_elem(src.placement.layout.format);
  const int64_t src_bytes = src.placement.layout.bytes(), dst_bytes = dst.placement.layout.bytes();
  for (int64_t i = 0; i < src_bytes; ++i) memories.source()[i] = std::byte(random());
  for (int64_t i = 0; i < dst_bytes; ++i) memories.destination()[i] = std::byte(random());
  std::vector<std::byte> expected(memories.destination(), memories.destination() + dst_bytes);
  const Places from = find_places(src.placement), to = find_places(dst.placement);
  for_each_index(src.view.sizes, [&](const Dims& index) {
    const int64_t place = from.at(src.view.offset + dot(index, src.view.strides)).front();
    for (int64_t at : to.at(dst.view.offset + dot(index, dst.view.strides))) {
      std::memcpy(expected.data() + at * elem, memories.source() + place * elem, elem);
    }
  });
  CopyStep step = parse(words_of(src, dst, parts), head_of(parts));
  run_copy(step, head_of(parts), memories.context());
  if (std::memcmp(memories.destination(), expected.data(), dst_bytes) != 0) {
    check::fail(__FILE__, __LINE__,
                src.placement.layout.repr() + " to " + dst.placement.layout.repr() + ", sizes " +
                    check::show(src.view.sizes) + " on " + std::to_string(parts.size()) + " cores");
  }
  return step;
}

Side full(const Placement& placement) { return {placement, full_view(placement)}; }

}  // namespace

TEST(a_matrix_is_restickified_on_any_number_of_cores) {
  Random random(1);
  for (DataFormat format : {kFp16, DataFormat::IEEE_FP32, DataFormat::SEN143_FP8}) {
    for (auto [rows, cols] : {std::pair{1, 65}, {63, 64}, {100, 129}, {300, 200}}) {
      const Side by_cols = full(ordered({rows, cols}, {0, 1}, format));
      const Side by_rows = full(ordered({rows, cols}, {1, 0}, format));
      for (size_t cores : {1, 2, 7}) {
        const auto parts = divided(by_cols.view, cores, random);
        check_copy(by_cols, by_rows, parts, random);
        check_copy(by_rows, by_cols, parts, random);
        check_copy(by_rows, by_rows, parts, random);
      }
    }
  }
}

TEST(a_grid_of_cores_becomes_one_copy) {
  Random random(2);
  const Side src = full(ordered({300, 200}, {0, 1})), dst = full(ordered({300, 200}, {1, 0}));
  std::vector<Part> grid;
  for (int64_t m : {0, 75, 150, 225}) {
    for (int64_t n : {0, 64, 128, 192}) {
      grid.push_back({{m, n}, {75, std::min<int64_t>(64, 200 - n)}});
    }
  }
  const CopyStep step = check_copy(src, dst, grid, random);
  CHECK_EQ(step.parts.size(), 1u);
  CHECK_EQ(step.parts[0].source.sizes, (Dims{300, 200}));
  std::swap(grid[3], grid[10]);  // in any order
  CHECK_EQ(check_copy(src, dst, grid, random).parts.size(), 1u);
}

TEST(random_views_of_random_layouts_on_random_cores) {
  Random random(3);
  int done = 0;
  while (done < 300) {
    const DataFormat formats[] = {kFp16, DataFormat::IEEE_FP32, DataFormat::SEN143_FP8};
    const DataFormat format = formats[pick(random, 0, 2)];
    const Dims sizes = random_sizes(random, 20'000);
    Side src = full(random_placement(sizes, format, random));
    Side dst = full(random_placement(sizes, format, random));
    if (!is_small(src.placement) || !is_small(dst.placement)) continue;
    try {
      check_placement(src.placement);
      check_placement(dst.placement);
    } catch (const std::invalid_argument&) {
      continue;  // a split axis can meet the stride of another
    }
    // The same slice of both.
    for (size_t d = 0; d < sizes.size() && pick(random, 0, 1); ++d) {
      const int64_t begin = pick(random, 0, sizes[d] - 1);
      src.view.offset += begin * src.view.strides[d];
      dst.view.offset += begin * dst.view.strides[d];
      src.view.sizes[d] = dst.view.sizes[d] = pick(random, 1, sizes[d] - begin);
    }
    check_copy(src, dst, divided(src.view, pick(random, 1, 9), random), random);
    ++done;
  }
}

TEST(an_expanded_source_fills_the_destination) {
  Random random(4);
  Side src = full(ordered({100}, {0}));
  const Side dst = full(ordered({30, 100}, {0, 1}));
  src.view = {{30, 100}, {0, 1}, 0};
  check_copy(src, dst, divided(dst.view, 5, random), random);
}

TEST(scratchpads_are_those_of_the_core) {
  Random random(5);
  Memories memories;
  const Side src = full(ordered({64, 128}, {0, 1})), dst = full(ordered({64, 128}, {1, 0}));
  const std::vector<Part> parts = {{{0, 0}, {32, 128}}, {{32, 0}, {32, 128}}};
  const int64_t bytes = dst.placement.layout.bytes();
  std::vector<std::byte> first(512 + bytes, std::byte{1}), second = first;
  std::byte* const lx[] = {first.data(), second.data()};
  for (int64_t i = 0; i < src.placement.layout.bytes(); ++i) {
    memories.source()[i] = std::byte(random());
  }
  Words words;
  put_side(words, src, parts, Space::ARGUMENT, 0, 256);
  put_side(words, dst, parts, Space::LX, 0, 512);
  const CopyStep step = parse(words, head_of(parts));
  CHECK_EQ(step.parts.size(), 2u);
  run_copy(step, head_of(parts), memories.context(lx));
  const Places from = find_places(src.placement), to = find_places(dst.placement);
  for_each_index(src.view.sizes, [&](const Dims& index) {
    const int64_t e = dot(index, src.view.strides);
    const int core = index[0] < 32 ? 0 : 1;
    CHECK(std::memcmp(lx[core] + 512 + to[e][0] * 2, memories.source() + from[e][0] * 2, 2) == 0);
    const std::byte untouched[2] = {std::byte{1}, std::byte{1}};
    CHECK(std::memcmp(lx[1 - core] + 512 + to[e][0] * 2, untouched, 2) == 0);
  });
}

TEST(malformed_copies_are_refused_by_name) {
  const Side src = full(ordered({30, 100}, {0, 1}));
  const Side dst = full(ordered({30, 100}, {0, 1}, DataFormat::IEEE_FP32));
  const StepHead head = {3, 1, 0, "copy", 0};
  const auto parts = whole(src.view);
  CHECK_THROWS(parse(words_of(src, dst, parts), head), ProgramError,
               "elements of 2 and 4 bytes do not match");
  CHECK_THROWS(parse(words_of(src, src, {{{5, 0}, {30, 100}}}), head), ProgramError,
               "step 'copy' of the program is malformed: view with sizes");
  Side small = src;
  small.placement.layout.device_size[1] = 29;
  CHECK_THROWS(parse(words_of(small, src, parts), head), ProgramError, "is too small for");
  Words words = words_of(src, src, parts);
  words.pop_back();
  CHECK_THROWS(parse(words, head), ProgramError, "it ends too early");
}
