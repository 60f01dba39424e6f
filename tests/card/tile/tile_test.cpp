// Whole steps of tile programs against a slow interpreter that goes point by point, and refusals.
#include "tile/tile.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "numerics/dlfloat16.h"
#include "support/check.h"
#include "support/program_words.h"

using namespace words;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
float float_of(uint32_t value) { return std::bit_cast<float>(value); }

// ---- whole steps against a slow interpreter ----------------------------------------------------

// One lane at a time, one point at a time, in the words of the document. Data are small whole
// numbers, so that sums are exact in whatever order.
class SlowInterpreter {
 public:
  SlowInterpreter(Rig& rig, const TileSpec& spec) : rig_(rig), spec_(spec) {
    for (const OperandSpec& o : spec.operands) {
      operands_.push_back(
          {o.format,
           o.form,
           o.strides,
           o.sub_stride,
           o.limits.empty() ? Words(spec.cores(), -1) : o.limits,
           {o.space, o.argument, o.offsets.empty() ? Words(spec.cores(), 0) : o.offsets, {}}});
    }
  }

  void run() {
    std::vector<bool> done(spec_.cores());
    for (int core = 0; core < spec_.cores(); core++) {
      if (done[core]) continue;
      std::vector<int> team;
      for (int other = core; other < spec_.cores(); other++) {
        if (other == core || (!spec_.groups.empty() && spec_.groups[other] == spec_.groups[core])) {
          team.push_back(other);
          done[other] = true;
        }
      }
      for_points(core, 0, spec_.kept, [&](const Words& kept) { run_kept(team, kept); });
    }
  }

 private:
  using Lanes = std::vector<uint32_t>;

  template <class Work>
  void for_points(int core, int64_t first, int64_t count, Work work) {
    Words point(count, 0);
    const Words& extents = spec_.extents[core];
    for (int64_t d = 0; d < count; d++) {
      if (extents[first + d] == 0) return;
    }
    while (true) {
      work(point);
      int64_t d = count - 1;
      while (d >= 0 && ++point[d] == extents[first + d]) point[d--] = 0;
      if (d < 0) return;
    }
  }

  void run_kept(const std::vector<int>& team, const Words& kept) {
    if (spec_.reductions.empty()) return run_body(team[0], kept);
    std::vector<std::vector<std::vector<double>>> values(
        spec_.reductions.size(), std::vector<std::vector<double>>(spec_.lanes));
    for (int core : team) {
      for_points(core, spec_.kept, spec_.reduced, [&](const Words& reduced) {
        Words point = kept;
        append(point, reduced);
        run_body(core, point);
        for (size_t r = 0; r < values.size(); r++) {
          for (int l = 0; l < spec_.lanes; l++) {
            if (!valid(core, point, l)) continue;
            const int target = spec_.reduce_lanes ? 0 : l;
            values[r][target].push_back(float_of(registers_[spec_.reductions[r].source][l]));
          }
        }
      });
    }
    for (size_t r = 0; r < values.size(); r++) {
      for (int l = 0; l < spec_.lanes; l++) {
        finish(spec_.reductions[r], values[r][spec_.reduce_lanes ? 0 : l], l);
      }
    }
    run_list(spec_.epilogue, team[0], kept);
  }

  bool valid(int core, const Words& point, int lane) const {
    if (!spec_.reduce_lanes || spec_.tails.empty()) return true;
    const int64_t d = spec_.stick_dim;
    if (d >= 0 && point[d] != spec_.extents[core][d] - 1) return true;
    const auto [low, high] = spec_.tails[core];
    return (lane < 64 ? low >> lane : high >> (lane - 64)) & 1;
  }

  void finish(const TileSpec::Reduction& reduction, const std::vector<double>& values, int lane) {
    double sum = 0, squares = 0, product = 1, low = kInf, high = -kInf;
    for (double v : values) {
      sum += v;
      squares += v * v;
      product *= v;
      low = std::isnan(v) || std::isnan(low) ? kNan : std::min(low, v);
      high = std::isnan(v) || std::isnan(high) ? kNan : std::max(high, v);
    }
    const double n = static_cast<double>(values.size());
    const double results[] = {sum, high, low, product, sum / n};
    set(reduction.destination, lane, static_cast<float>(results[reduction.op]));
    if (reduction.op == 4) {
      set(reduction.destination + 1, lane, static_cast<float>(squares / n - (sum / n) * (sum / n)));
    }
  }

  void set(int64_t reg, int lane, float value) {
    auto& lanes = registers_[reg];
    lanes.resize(spec_.lanes);
    lanes[lane] = bits_of(value);
  }

  void run_body(int core, const Words& point) { run_list(spec_.body, core, point); }

  void run_list(const std::vector<InstructionSpec>& list, int core, const Words& point) {
    for (const InstructionSpec& in : list) {
      if (in.opcode == LOAD) {
        const auto [at, left] = place(in.a, core, point);
        auto& out = registers_[in.destination];
        out.assign(spec_.lanes, 0);
        load_group(operands_[in.a], at, left, static_cast<int>(spec_.lanes), rig_.numerics,
                   out.data());
      } else if (in.opcode == STORE) {
        const auto [at, left] = place(in.destination, core, point);
        store_group(operands_[in.destination], at, left, static_cast<int>(spec_.lanes),
                    rig_.numerics, registers_[in.a].data(),
                    in.b < 0 ? nullptr : registers_[in.b].data());
      } else {
        Lanes out(spec_.lanes);
        for (int l = 0; l < spec_.lanes; l++) out[l] = lane_of(in, l);
        registers_[in.destination] = out;
      }
    }
  }

  std::pair<std::byte*, int64_t> place(int64_t number, int core, const Words& point) {
    const TileOperand& operand = operands_[number];
    std::byte* at = operand.address.space == Space::LX ? rig_.lx.by_core()[core]
                                                       : rig_.host(operand.address.argument);
    at += operand.address.offsets[core];
    for (size_t d = 0; d < point.size(); d++) at += point[d] * operand.strides[d];
    const int64_t d = spec_.stick_dim;
    const int64_t group = d >= 0 && d < static_cast<int64_t>(point.size()) ? point[d] : 0;
    return {at, sticks_left(operand, core, group, static_cast<int>(spec_.lanes))};
  }

  uint32_t lane_of(const InstructionSpec& in, int lane) {
    const auto value = [&](int64_t reg) { return float_of(registers_[reg][lane]); };
    switch (in.opcode) {
      case ROUND: {
        std::byte element[4];
        const auto format = static_cast<DataFormat>(in.b);
        store_element(format, rig_.numerics, registers_[in.a][lane], element);
        return load_element(format, rig_.numerics, element);
      }
      case ADD:
        return bits_of(value(in.a) + value(in.b));
      case MUL:
        return bits_of(value(in.a) * value(in.b));
      case MAXIMUM:
        return bits_of(std::max(value(in.a), value(in.b)));
      case NEG:
        return bits_of(-value(in.a));
      case ADD_CONSTANT:
        return bits_of(value(in.a) + in.imm0);
      case MUL_CONSTANT:
        return bits_of(value(in.a) * in.imm0);
      case INT_TO_FLOAT:
        return bits_of(static_cast<float>(static_cast<int32_t>(registers_[in.a][lane])));
    }
    throw std::logic_error("opcode of the test");
  }

  Rig& rig_;
  const TileSpec& spec_;
  std::vector<TileOperand> operands_;
  std::map<int64_t, Lanes> registers_;
};

// Fills an operand's memory with small whole numbers of its format.
void fill(std::byte* at, size_t bytes, DataFormat format, std::mt19937& random, int most = 4) {
  const int64_t size = bytes_per_elem(format);
  const bool integer = format == DataFormat::IEEE_INT32 || format == DataFormat::SENINT8;
  for (size_t i = 0; i + size <= bytes; i += size) {
    const int value = static_cast<int>(random() % (2 * most + 1)) - most;
    store_element(format, Numerics::DLFLOAT16,
                  integer ? static_cast<uint32_t>(value) : bits_of(static_cast<float>(value)),
                  at + i);
  }
}

std::vector<std::byte> contents(Rig& rig, const std::vector<size_t>& sizes) {
  std::vector<std::byte> all;
  for (size_t i = 0; i < sizes.size(); i++)
    all.insert(all.end(), rig.host(i), rig.host(i) + sizes[i]);
  return all;
}
void restore(Rig& rig, const std::vector<size_t>& sizes, const std::vector<std::byte>& all) {
  size_t at = 0;
  for (size_t i = 0; i < sizes.size(); i++) {
    std::memcpy(rig.host(i), all.data() + at, sizes[i]);
    at += sizes[i];
  }
}

// Runs a step in every form of SIMD and with several numbers of threads; all bytes of all
// arguments must be those of the slow interpreter.
void check_step(Rig& rig, const TileSpec& spec, const std::vector<size_t>& sizes) {
  const auto before = contents(rig, sizes);
  SlowInterpreter(rig, spec).run();
  const auto expected = contents(rig, sizes);
  for (Simd simd : forms()) {
    for (int threads : {1, 2}) {
      rig.pool.resize(threads);
      restore(rig, sizes, before);
      rig.run_with(spec, simd);
      CHECK(contents(rig, sizes) == expected);
    }
  }
  restore(rig, sizes, before);
  rig.run({tile_step(spec)});  // as machine code, where the processor has AVX-512
  CHECK(contents(rig, sizes) == expected);
}

// Random steps. Each operand has memory of its own with its dimensions in a random order; loads
// may be broadcast along some dimensions.
struct RandomStep {
  Rig rig;
  TileSpec spec;
  std::vector<size_t> sizes;
  std::mt19937 random;

  explicit RandomStep(int seed) : random(seed) {}

  int64_t pick(int64_t low, int64_t high) { return low + random() % (high - low + 1); }

  int add_operand(DataFormat format, OperandForm form, bool kept_only, bool may_broadcast,
                  bool limited) {
    OperandSpec operand{.format = format, .form = form};
    operand.argument = static_cast<int>(spec.operands.size());
    const int64_t dims = spec.kept + spec.reduced;
    operand.strides.assign(dims, 0);
    const int64_t sticks = form == OperandForm::VECTOR ? spec.lanes / elems_per_stick(format) : 1;
    std::vector<int64_t> order;  // -1: the sticks of a group
    for (int64_t d = 0; d < (kept_only ? spec.kept : dims); d++) {
      if (!may_broadcast || pick(0, 3) > 0) order.push_back(d);
    }
    order.push_back(-1);
    std::shuffle(order.begin(), order.end(), random);
    int64_t at = 128;
    for (int64_t d : order) {
      int64_t extent = sticks;
      if (d >= 0) {
        extent = 1;
        for (const Words& core : spec.extents) extent = std::max(extent, core[d]);
      }
      (d < 0 ? operand.sub_stride : operand.strides[d]) = at;
      at *= extent;
    }
    for (int core = 0; core < spec.cores(); core++) {
      operand.offsets.push_back(core * at);
      if (limited && spec.stick_dim >= 0) {
        const int64_t all = spec.extents[core][spec.stick_dim] * sticks;
        operand.limits.push_back(pick(std::max<int64_t>(0, all - 3), all));
      }
    }
    sizes.push_back(at * spec.cores());
    std::byte* memory = rig.add_argument(sizes.back());
    fill(memory, sizes.back(), format, random);
    spec.operands.push_back(operand);
    return operand.argument;
  }

  void make(bool reduces) {
    spec.lanes = 64 << pick(0, 1) >> pick(0, 1);
    spec.kept = pick(0, 3);
    spec.reduced = reduces ? pick(0, 2) : 0;
    const int64_t dims = spec.kept + spec.reduced;
    spec.stick_dim = dims == 0 ? -1 : pick(-1, dims - 1);
    const int64_t cores = pick(1, 4);
    const bool grouped = reduces && pick(0, 1);
    for (int64_t core = 0; core < cores; core++) {
      Words extents;
      for (int64_t d = 0; d < dims; d++) {
        const bool shared = grouped && core > 0 && d < spec.kept;
        extents.push_back(shared ? spec.extents[0][d] : pick(1, 5));
      }
      spec.extents.push_back(extents);
      if (grouped) spec.groups.push_back(pick(5, 6));
    }
    std::vector<DataFormat> formats = {DataFormat::IEEE_FP32};
    if (spec.lanes >= 64) {
      formats.push_back(DataFormat::SEN169_FP16);
      formats.push_back(DataFormat::BFLOAT16);
      formats.push_back(DataFormat::IEEE_FP16);
    }
    if (spec.lanes >= 128) formats.push_back(DataFormat::SEN143_FP8);
    const auto format = [&] { return formats[random() % formats.size()]; };
    const auto vector = OperandForm::VECTOR;
    add_operand(format(), vector, false, true, pick(0, 1));
    add_operand(format(), pick(0, 2) ? vector : OperandForm::SPLAT, false, true, false);
    const int out = add_operand(format(), vector, reduces, false, pick(0, 1));
    spec.body = {{LOAD, 3, 0}, {LOAD, 4, 1}, {ADD, 5, 3, 4}};
    if (pick(0, 1)) spec.body.push_back({ROUND, 5, 5, int(DataFormat::SEN169_FP16)});
    if (!reduces) {
      spec.body.push_back({MUL_CONSTANT, 5, 5, -1, -1, 0.5f});
      spec.body.push_back({ROUND, 6, 5, int(format())});
      spec.body.push_back({STORE, out, 6});
      return;
    }
    spec.reduce_lanes = pick(0, 1);
    const bool tails = spec.reduce_lanes && pick(0, 1);
    if (tails) {
      for (int64_t core = 0; core < cores; core++)
        spec.tails.push_back({random() | 1ull, random()});
    }
    const int64_t op = pick(0, 2);
    spec.reductions = {{0, 5, 10}, {op, 4, 11}};
    spec.epilogue = {{MUL_CONSTANT, 12, 10, -1, -1, 0.25f}, {ADD, 12, 12, 11}, {STORE, out, 12}};
    if (pick(0, 1)) {
      const int splat = add_operand(format(), OperandForm::SPLAT_STORE, true, false, false);
      spec.epilogue.push_back({STORE, splat, 11});
    }
    if (pick(0, 1)) {  // the body may store too
      const int other = add_operand(format(), vector, false, false, false);
      spec.body.push_back({STORE, other, 5});
    }
  }
};

TEST(random_chains_equal_the_slow_interpreter) {
  for (int seed = 0; seed < 150; seed++) {
    RandomStep step(seed);
    step.make(false);
    const int before = check::failures;
    check_step(step.rig, step.spec, step.sizes);
    if (check::failures != before) std::printf("    seed %d\n", seed);
  }
}

TEST(random_reductions_equal_the_slow_interpreter) {
  for (int seed = 1000; seed < 1300; seed++) {
    RandomStep step(seed);
    step.make(true);
    const int before = check::failures;
    check_step(step.rig, step.spec, step.sizes);
    if (check::failures != before) std::printf("    seed %d\n", seed);
  }
}

TEST(large_steps_are_divided_among_threads_without_changing_a_bit) {
  Rig rig;
  std::mt19937 random(9);
  // 3 columns of sticks, 700 rows: the output has its rows together, one input its sticks.
  const int64_t rows = 700, columns = 3;
  std::vector<size_t> sizes = {size_t(rows * columns * 128), size_t(rows * columns * 128), 128 * 3,
                               size_t(rows * columns * 128)};
  for (size_t size : sizes) fill(rig.add_argument(size), size, DataFormat::SEN169_FP16, random);
  TileSpec spec{.lanes = 64, .kept = 2, .stick_dim = 1, .extents = {{rows, columns}}};
  spec.operands = {{.strides = {128, rows * 128}, .argument = 0},
                   {.strides = {128 * columns, 128}, .argument = 1},
                   {.strides = {0, 128}, .argument = 2},
                   {.strides = {128, rows * 128}, .argument = 3}};
  spec.body = {{LOAD, 0, 0},     {LOAD, 1, 1},   {LOAD, 2, 2}, {ADD, 0, 0, 1},
               {ROUND, 0, 0, 0}, {MUL, 0, 0, 2}, {STORE, 3, 0}};
  check_step(rig, spec, sizes);
}

TEST(an_odd_number_of_float32_sticks_under_groups_of_64_lanes) {
  // 3 sticks of float32 are one and a half groups; the DLFloat16 result has 2 sticks.
  Rig rig;
  auto* in = reinterpret_cast<float*>(rig.add_argument(3 * 128));
  rig.add_argument(2 * 128);
  auto* back = reinterpret_cast<float*>(rig.add_argument(4 * 128));
  for (int i = 0; i < 96; i++) in[i] = static_cast<float>(i + 1);
  for (int i = 0; i < 128; i++) back[i] = -7;
  TileSpec spec{.lanes = 64, .kept = 1, .stick_dim = 0, .extents = {{2}}};
  spec.operands = {
      {.format = DataFormat::IEEE_FP32, .strides = {256}, .limits = {3}, .argument = 0},
      {.format = DataFormat::SEN169_FP16, .strides = {128}, .argument = 1},
      {.format = DataFormat::IEEE_FP32, .strides = {256}, .limits = {3}, .argument = 2}};
  spec.body = {{LOAD, 0, 0}, {STORE, 1, 0}, {STORE, 2, 0}};
  rig.run({tile_step(spec)});
  for (int i = 0; i < 128; i++) {
    const float expected = i < 96 ? static_cast<float>(i + 1) : 0;
    CHECK_EQ(decode_dlfloat16(rig.data<uint16_t>(1)[i]), expected);
    CHECK_EQ(back[i], i < 96 ? expected : -7);
  }
}

TEST(a_softmax_of_masked_rows_in_one_program) {
  Rig rig;
  const int64_t rows = 20, sticks = 3, columns = 150;
  auto* x = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
  rig.add_argument(rows * 128);
  rig.add_argument(rows * 128);
  auto* out = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
  std::mt19937 random(10);
  std::normal_distribution<float> normal;
  const auto at = [&](int64_t row, int64_t column) {
    return (column / 64 * rows + row) * 64 + column % 64;
  };
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < sticks * 64; c++) {
      x[at(r, c)] = encode_dlfloat16(c < columns ? normal(random) : 1000.0f);
    }
  }
  TileSpec max{.lanes = 64, .kept = 1, .reduced = 1, .stick_dim = 1, .extents = {{rows, sticks}}};
  max.tails = {{(1ull << (columns - 128)) - 1, 0}};
  max.operands = {{.strides = {128, rows * 128}, .argument = 0},
                  {.form = OperandForm::SPLAT_STORE, .strides = {128, 0}, .argument = 1}};
  max.body = {{LOAD, 0, 0}};
  max.reduce_lanes = true;
  max.reductions = {{1, 0, 1}};
  max.epilogue = {{STORE, 1, 1}};
  TileSpec sum = max;
  sum.operands.push_back({.form = OperandForm::SPLAT, .strides = {128, 0}, .argument = 1});
  sum.operands[1].argument = 2;
  sum.body = {{LOAD, 0, 0}, {LOAD, 1, 2}, {SUB, 0, 0, 1}, {EXP, 0, 0}};
  sum.reductions = {{0, 0, 1}};
  TileSpec divide{.lanes = 64, .kept = 2, .stick_dim = 1, .extents = {{rows, sticks}}};
  divide.operands = {max.operands[0],
                     {.form = OperandForm::SPLAT, .strides = {128, 0}, .argument = 1},
                     {.form = OperandForm::SPLAT, .strides = {128, 0}, .argument = 2},
                     {.strides = {128, rows * 128}, .argument = 3}};
  divide.body = {{LOAD, 0, 0}, {LOAD, 1, 1},   {LOAD, 2, 2}, {SUB, 0, 0, 1},
                 {EXP, 0, 0},  {DIV, 0, 0, 2}, {STORE, 3, 0}};
  rig.run({tile_step(max), tile_step(sum), tile_step(divide)});
  for (int64_t r = 0; r < rows; r++) {
    double top = -kInf, total = 0;
    for (int64_t c = 0; c < columns; c++) {
      top = std::max<double>(top, decode_dlfloat16(x[at(r, c)]));
    }
    for (int64_t c = 0; c < columns; c++) total += std::exp(decode_dlfloat16(x[at(r, c)]) - top);
    for (int64_t c = 0; c < columns; c++) {
      const double exact = std::exp(decode_dlfloat16(x[at(r, c)]) - top) / total;
      CHECK(std::fabs(decode_dlfloat16(out[at(r, c)]) - exact) <= exact * 0x1p-8);
    }
  }
}

// Softmax and the moments of its results, with and without the lanes, as separate steps and as the
// phases of one.
TEST(phases_have_the_bits_of_separate_steps) {
  struct Shape {
    int64_t rows, sticks, columns;
    bool over_lanes;
  };
  for (const Shape& shape :
       {Shape{20, 1, 50, true}, Shape{300, 3, 192, true}, Shape{5, 40, 2500, true},
        Shape{1, 9, 513, true}, Shape{6, 30, 1920, false}, Shape{700, 2, 128, false}}) {
    Rig rig;
    const auto [rows, sticks, columns, over_lanes] = shape;
    auto* x = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
    for (int i = 0; i < 3; i++) rig.add_argument(rows * 128);
    for (int i = 0; i < 4; i++) rig.add_argument(rows * sticks * 128);
    rig.add_argument(rows * 128);
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * sticks * 64; i++) x[i] = encode_dlfloat16(normal(random));
    const int64_t rest = columns - (sticks - 1) * 64;
    const auto result = over_lanes ? OperandForm::SPLAT_STORE : OperandForm::VECTOR;
    const auto spread = over_lanes ? OperandForm::SPLAT : OperandForm::VECTOR;
    const Words by_row = {128, 0}, full = {128, rows * 128};
    TileSpec max{.lanes = 64, .kept = 1, .reduced = 1, .stick_dim = over_lanes ? 1 : -1};
    max.extents = {{rows, sticks}};
    if (rest < 64) max.tails = {{(1ull << rest) - 1, 0}};
    max.operands = {{.strides = full, .argument = 0},
                    {.form = result, .strides = by_row, .argument = 1}};
    max.body = {{LOAD, 0, 0}};
    max.reduce_lanes = over_lanes;
    max.reductions = {{1, 0, 1}};
    max.epilogue = {{STORE, 1, 1}};
    TileSpec sum = max;
    sum.operands = {{.strides = full, .argument = 0},
                    {.form = result, .strides = by_row, .argument = 2},
                    {.form = spread, .strides = by_row, .argument = 1},
                    {.strides = full, .argument = 4}};
    sum.body = {{LOAD, 0, 0},      {LOAD, 1, 2},  {SUB, 0, 0, 1},
                {SHORT_EXP, 0, 0}, {STORE, 3, 0}, {LOAD, 0, 3}};
    sum.reductions = {{0, 0, 1}};
    TileSpec divide{.lanes = 64, .kept = 2, .stick_dim = max.stick_dim};
    divide.extents = {{rows, sticks}};
    divide.operands = {{.strides = full, .argument = 4},
                       {.form = spread, .strides = by_row, .argument = 2},
                       {.strides = full, .argument = 5}};
    divide.body = {{LOAD, 0, 0}, {LOAD, 1, 1}, {DIV, 0, 0, 1}, {STORE, 2, 0}};
    rig.run({tile_step(max), tile_step(sum), tile_step(divide)});

    TileSpec all = max;
    all.operands.push_back({.strides = full, .argument = 6});
    all.operands.push_back({.form = result, .strides = by_row, .argument = 3});
    all.operands.push_back({.strides = full, .argument = 7});
    const InstructionSpec round{ROUND, 2, 2, static_cast<int64_t>(DataFormat::SEN169_FP16)};
    all.epilogue = {{STORE, 1, 1}};
    all.further = {{{{SPREAD, 1, 1}, {SUB, 2, 0, 1}, {SHORT_EXP, 2, 2}, round, {STORE, 2, 2}},
                    {{0, 2, 4}},
                    {{ROUND, 4, 4, static_cast<int64_t>(DataFormat::SEN169_FP16)}, {STORE, 3, 4}}},
                   {{{SPREAD, 3, 4}, {DIV, 3, 2, 3}, {STORE, 4, 3}}}};
    rig.run({tile_step(all)});
    const auto bytes = [&](int argument, int64_t count) {
      return std::vector<std::byte>(rig.host(argument), rig.host(argument) + count);
    };
    CHECK(bytes(4, rows * sticks * 128) == bytes(6, rows * sticks * 128));
    CHECK(bytes(2, rows * 128) == bytes(3, rows * 128));
    CHECK(bytes(5, rows * sticks * 128) == bytes(7, rows * sticks * 128));
  }
}

// Rows of 4 sticks, divided 2 x 2: sticks [stick][row][64].
TEST(cores_whose_shares_follow_each_other_are_walked_as_one) {
  const int64_t rows = 6, sticks = 4;
  const auto spec_of = [&](std::vector<Words> extents, Words offsets) {
    TileSpec spec{.lanes = 64, .kept = 2, .stick_dim = 1, .extents = std::move(extents)};
    for (int argument = 0; argument < 2; argument++) {
      spec.operands.push_back(
          {.strides = {128, rows * 128}, .argument = argument, .offsets = offsets});
    }
    spec.body = {{LOAD, 0, 0}, {NEG, 0, 0}, {STORE, 1, 0}};
    return spec;
  };
  const Words half = {rows / 2, sticks / 2};
  const int64_t down = rows / 2 * 128, right = sticks / 2 * rows * 128;
  const auto teams = [](const TileSpec& spec) {
    const auto words = program_of({tile_step(spec)});
    return std::get<TileStep>(parse_program({kProgramSegment, words})->steps[0].what).teams.size();
  };
  const TileSpec divided = spec_of({half, half, half, half}, {0, down, right, right + down});
  CHECK(teams(divided) == 1);
  // The third one begins a row further down: then so many, and no more, are one.
  const TileSpec shifted = spec_of({half, half, half, half}, {0, down, right, right + down + 128});
  CHECK(teams(shifted) == 4);
  CHECK(teams(spec_of({half, half}, {0, right + down})) == 2);

  Rig rig;
  auto* x = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
  auto* out = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
  for (int i = 0; i < rows * sticks * 64; i++) x[i] = encode_dlfloat16(static_cast<float>(i % 500));
  rig.run({tile_step(divided)});
  for (int i = 0; i < rows * sticks * 64; i++) CHECK(decode_dlfloat16(out[i]) == -(i % 500));
}

TEST(maximum_and_minimum_hand_nan_on_also_over_lanes_and_cores) {
  for (int64_t op : {1, 2}) {
    for (int where = 0; where < 4; where++) {
      Rig rig;
      auto* in = reinterpret_cast<float*>(rig.add_argument(2 * 4 * 128));
      auto* out = reinterpret_cast<float*>(rig.add_argument(128));
      for (int i = 0; i < 2 * 4 * 32; i++) in[i] = static_cast<float>(i % 7);
      in[where * 61 + 5] = kNan;
      TileSpec spec{.lanes = 32, .reduced = 1, .stick_dim = 0, .extents = {{4}, {4}}};
      spec.operands = {{.format = DataFormat::IEEE_FP32, .strides = {128}, .offsets = {0, 512}},
                       {.format = DataFormat::IEEE_FP32, .strides = {0}, .argument = 1}};
      spec.body = {{LOAD, 0, 0}};
      spec.reduce_lanes = true;
      spec.groups = {0, 0};
      spec.reductions = {{op, 0, 1}};
      spec.epilogue = {{STORE, 1, 1}};
      rig.run({tile_step(spec)});
      for (int i = 0; i < 32; i++) CHECK(std::isnan(out[i]));
    }
  }
}

TEST(exx2_gives_mean_and_variance_of_the_valid_lanes_of_all_cores) {
  for (const auto& [format, op] :
       {std::pair(DataFormat::SEN169_FP16, 4), std::pair(DataFormat::SEN169_FP16, 5),
        std::pair(DataFormat::IEEE_FP32, 4), std::pair(DataFormat::IEEE_FP32, 5)}) {
    Rig rig;
    // Two cores with 2 and 1 sticks of each of 11 rows; the last stick has 10 lanes.
    const int64_t rows = 11, sticks = 3, columns = 2 * 64 + 10;
    auto* x = reinterpret_cast<uint16_t*>(rig.add_argument(rows * sticks * 128));
    rig.add_argument(rows * 128);
    auto* norm = reinterpret_cast<uint16_t*>(rig.add_argument(rows * 128));
    std::mt19937 random(11);
    std::normal_distribution<float> normal(100, 1);  // a mean far from zero
    for (int64_t i = 0; i < rows * sticks * 64; i++) x[i] = encode_dlfloat16(normal(random));
    TileSpec spec{
        .lanes = 64, .kept = 1, .reduced = 1, .stick_dim = 1, .extents = {{rows, 2}, {rows, 1}}};
    spec.tails = {{~0ull, 0}, {(1ull << 10) - 1, 0}};
    spec.operands = {
        {.strides = {128, rows * 128}, .argument = 0, .offsets = {0, 2 * rows * 128}},
        {.format = format, .form = OperandForm::EXX2_STORE, .strides = {128, 0}, .argument = 1}};
    spec.body = {{LOAD, 0, 0}};
    spec.reduce_lanes = true;
    spec.groups = {3, 3};
    spec.reductions = {{op, 0, 5}};
    spec.epilogue = {{STORE, 1, 5, 6}};
    TileSpec read{.lanes = 64, .kept = 1, .extents = {{rows}}};
    read.operands = {
        {.format = format, .form = OperandForm::EXX2_MEAN, .strides = {128}, .argument = 1},
        {.format = format, .form = OperandForm::EXX2_VARIANCE, .strides = {128}, .argument = 1},
        {.strides = {128}, .argument = 2}};
    read.body = {{LOAD, 0, 0},
                 {LOAD, 1, 1},
                 {MUL_CONSTANT, 1, 1, -1, -1, 64.0f},
                 {ADD, 0, 0, 1},
                 {STORE, 2, 0}};
    rig.run({tile_step(spec), tile_step(read)});
    for (int64_t r = 0; r < rows; r++) {
      double sum = 0, squares = 0;
      for (int64_t c = 0; c < columns; c++) {
        const double v = decode_dlfloat16(x[(c / 64 * rows + r) * 64 + c % 64]);
        sum += v;
        squares += v * v;
      }
      const float mean = static_cast<float>(sum / columns);
      const float variance =
          static_cast<float>(squares / columns - (sum / columns) * (sum / columns));
      const std::byte* stick = rig.host(1) + r * 128;
      const bool wide = format == DataFormat::IEEE_FP32;
      float found[2];
      std::memcpy(found, stick + (wide ? 0 : 8), 8);
      CHECK(std::fabs(found[0] - mean) <= 1e-6f * mean);
      CHECK(std::fabs(found[1] - variance) <= 1e-5f * variance);
      if (!wide) {
        uint16_t code;
        std::memcpy(&code, stick, 2);
        CHECK_EQ(code, encode_dlfloat16(found[0]));
      }
      for (int lane : {0, 63}) {
        CHECK_EQ(norm[r * 64 + lane], encode_dlfloat16(found[0] + found[1] * 64.0f));
      }
    }
  }
}

TEST(integers_and_bytes_travel_through_registers) {
  Rig rig;
  auto* in = reinterpret_cast<int8_t*>(rig.add_argument(128));
  auto* wide = reinterpret_cast<int32_t*>(rig.add_argument(4 * 128));
  auto* halves = reinterpret_cast<uint16_t*>(rig.add_argument(2 * 128));
  auto* again = reinterpret_cast<int8_t*>(rig.add_argument(128));
  for (int i = 0; i < 128; i++) in[i] = static_cast<int8_t>(2 * i);
  TileSpec spec{.lanes = 128, .extents = {{}}};
  spec.operands = {{.format = DataFormat::SENINT8, .argument = 0},
                   {.format = DataFormat::IEEE_INT32, .argument = 1},
                   {.format = DataFormat::SEN169_FP16, .argument = 2},
                   {.format = DataFormat::SENINT8, .argument = 3}};
  spec.body = {{LOAD, 0, 0},  {INT_ADD, 1, 0, 0},   {STORE, 1, 1}, {INT_TO_FLOAT, 2, 0},
               {STORE, 2, 2}, {FLOAT_TO_INT, 3, 2}, {STORE, 3, 3}};
  rig.run({tile_step(spec)});
  for (int i = 0; i < 128; i++) {
    CHECK_EQ(wide[i], 2 * in[i]);
    CHECK_EQ(decode_dlfloat16(halves[i]), static_cast<float>(in[i]));
    CHECK_EQ(again[i], in[i]);
  }
}

TEST(ieee_numerics_store_halves_and_round_to_them) {
  Rig rig;
  rig.numerics = Numerics::IEEE;
  auto* in = reinterpret_cast<float*>(rig.add_argument(2 * 128));
  auto* out = reinterpret_cast<uint16_t*>(rig.add_argument(128));
  auto* rounded = reinterpret_cast<float*>(rig.add_argument(2 * 128));
  for (int i = 0; i < 64; i++) in[i] = 1.0f + static_cast<float>(i) * 0x1p-11f;
  TileSpec spec{.lanes = 64, .extents = {{}}};
  spec.operands = {{.format = DataFormat::IEEE_FP32, .argument = 0},
                   {.argument = 1},
                   {.format = DataFormat::IEEE_FP32, .argument = 2}};
  spec.body = {{LOAD, 0, 0},
               {STORE, 1, 0},
               {MUL_CONSTANT, 1, 0, -1, -1, 1.0f},
               {ROUND, 1, 1, 0},
               {STORE, 2, 1}};
  rig.run({tile_step(spec)});
  for (int i = 0; i < 64; i++) {
    const int units = i % 2 == 0 ? i / 2 : (i / 2 + (i / 2) % 2);  // of 2^-10, ties to even
    CHECK_EQ(out[i], 0x3c00 + units);
    CHECK_EQ(rounded[i], 1.0f + static_cast<float>(units) * 0x1p-10f);
  }
}

// ---- malformed steps ---------------------------------------------------------------------------

TileSpec small_spec() {
  TileSpec spec{.lanes = 64, .kept = 1, .reduced = 1, .stick_dim = 1, .extents = {{2, 2}, {2, 2}}};
  spec.operands = {{.strides = {128, 256}}, {.strides = {128, 0}}};
  spec.body = {{LOAD, 0, 0}};
  spec.reductions = {{0, 0, 1}};
  spec.epilogue = {{STORE, 1, 1}};
  return spec;
}

void parse(const TileSpec& spec) {
  parse_program({kProgramSegment, program_of({tile_step(spec)})});
}

TEST(malformed_tile_programs_are_refused_with_the_reason) {
  parse(small_spec());
  const auto refused = [](const char* part, auto change) {
    TileSpec spec = small_spec();
    change(spec);
    CHECK_THROWS(parse(spec), ProgramError, part);
  };
  refused("the number of lanes is 16", [](TileSpec& s) { s.lanes = 16; });
  refused("96 lanes", [](TileSpec& s) { s.lanes = 96; });
  refused("the stick dim is 2", [](TileSpec& s) { s.stick_dim = 2; });
  refused("an extent is -1", [](TileSpec& s) { s.extents[1][0] = -1; });
  refused("more elements than the 32 lanes", [](TileSpec& s) { s.lanes = 32; });
  refused("cannot have the format SENINT4",
          [](TileSpec& s) { s.operands[0].format = DataFormat::SENINT4; });
  refused("a limit is -2", [](TileSpec& s) { s.operands[0].limits = {0, -2}; });
  refused("the space of an address is 4",
          [](TileSpec& s) { s.operands[0].space = static_cast<Space>(4); });
  refused("the form of an operand is 6",
          [](TileSpec& s) { s.operands[0].form = static_cast<OperandForm>(6); });
  refused("no opcode 53", [](TileSpec& s) { s.body.push_back({53, 0, 0, 0}); });
  refused("no opcode -1", [](TileSpec& s) { s.body.push_back({-1, 0, 0, 0}); });
  refused("no register 32", [](TileSpec& s) { s.body.push_back({ABS, 32, 0}); });
  refused("no register -1", [](TileSpec& s) { s.body.push_back({ADD, 0, 0}); });
  refused("reads register 7 before", [](TileSpec& s) { s.body.push_back({ABS, 0, 7}); });
  refused("reads register 0 before", [](TileSpec& s) { s.epilogue.push_back({ABS, 2, 0}); });
  refused("reduces register 9 before", [](TileSpec& s) { s.reductions[0].source = 9; });
  refused("no operand 2", [](TileSpec& s) { s.body.push_back({LOAD, 0, 2}); });
  refused("cannot be stored", [](TileSpec& s) { s.operands[1].form = OperandForm::SPLAT; });
  refused("cannot be loaded", [](TileSpec& s) { s.operands[0].form = OperandForm::SPLAT_STORE; });
  refused("it rounds to format 2", [](TileSpec& s) { s.body.push_back({ROUND, 0, 0, 2}); });
  refused("the operation of a reduction is 6", [](TileSpec& s) { s.reductions[0].op = 6; });
  refused("the destination of a reduction is 31",
          [](TileSpec& s) { s.reductions[0] = {4, 0, 31}; });
  refused("different kept extents", [](TileSpec& s) {
    s.groups = {1, 1};
    s.extents[1][0] = 3;
  });
  refused("reduces nothing", [](TileSpec& s) { s.reductions.clear(); });
  refused("no EXX2 stick", [](TileSpec& s) {
    s.lanes = 128;
    s.operands[0].format = DataFormat::SENINT8;
    s.operands[0].form = OperandForm::EXX2_MEAN;
  });
  refused("widen and narrow need", [](TileSpec& s) {
    s.lanes = 32;
    for (auto& o : s.operands) o.format = DataFormat::IEEE_FP32;
    s.body.push_back({WIDEN, 0, 0});
  });
}

}  // namespace
