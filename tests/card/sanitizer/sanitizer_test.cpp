// The sanitizer on programs written by hand: each kind of fault once, with what is said about it.
#include "sanitizer/sanitizer.h"

#include <string>
#include <vector>

#include "support/check.h"
#include "support/program_words.h"

using namespace spyre::card;
using namespace words;

namespace {

constexpr int64_t kStick = kStickBytes;

// A small card whose programs are checked.
struct CheckedRig : Rig {
  Sanitizer sanitizer{0, memory, lx.by_core(), size_t{1} << 16, 256 << 20};
  ProgramNames names;
  std::vector<Words> reference;

  CheckedRig() { sanitizer.enable(); }

  // An argument whose sticks hold data in their first lanes.
  void add(int64_t sticks, int data_lanes = 64) {
    add_argument(sticks * kStick);
    const uint32_t run = sanitizer.new_run("a copy of the host");
    const size_t first = sanitizer.offset_of(arguments.back());
    sanitizer.device().fill(first, sticks * kStick, {Bits::range(0, 2 * data_lanes), run, kNoCore});
  }
  // One that nobody has written.
  void add_empty(int64_t sticks) { add_argument(sticks * kStick); }

  // What is found, or nothing.
  std::string check(const std::vector<Words>& steps) {
    load(steps);
    return launch_again();
  }
  void load(const std::vector<Words>& steps) {
    program = std::make_shared<CheckedProgram>();
    bytes = program_of(steps);
    program->kernel = "kernel";
    program->program = parse_shadow(bytes);
    if (!reference.empty()) program->reference = parse_shadow(program_of(reference));
    program->names = names;
  }
  std::string launch_again() {
    try {
      CheckedLaunch launch(sanitizer, program, arguments);
      was_known = launch.is_known();
      run_program(*parse_program({kProgramSegment, bytes}), arguments,
                  {memory, pool, numerics, lx.by_core()}, nullptr, &launch);
      launch.finish();
    } catch (const SanitizerFindings& found) {
      return found.what();
    }
    return "";
  }
  StickState state(int argument, int64_t stick) {
    return sanitizer.device().state(sanitizer.offset_of(arguments[argument]) / kStick + stick);
  }
  void set_state(int argument, int64_t stick, const StickState& state) {
    sanitizer.device().state(sanitizer.offset_of(arguments[argument]) / kStick + stick) = state;
  }

  std::shared_ptr<CheckedProgram> program;
  std::vector<std::byte> bytes;
  bool was_known = false;  // the last launch
};

bool has(const std::string& text, const std::string& part) {
  if (text.find(part) != text.npos) return true;
  std::printf("    found: %s\n", text.c_str());
  return false;
}

// out[i] = exp(in[i]) for four sticks on two cores; the offsets are those of the cores.
TileSpec exponential(Words in = {0, 256}, Words out = {0, 256}) {
  TileSpec spec{.lanes = 64, .kept = 1, .stick_dim = -1, .extents = {{2}, {2}}};
  spec.operands = {{.strides = {kStick}, .offsets = in},
                   {.strides = {kStick}, .argument = 1, .offsets = out}};
  spec.body = {{LOAD, 0, 0}, {EXP, 0, 0}, {STORE, 1, 0}};
  return spec;
}

// The sum over the lanes of four sticks.
TileSpec lane_sum(uint64_t tail) {
  TileSpec spec{.lanes = 64, .kept = 1, .extents = {{4}}, .tails = {{tail, 0}}};
  spec.operands = {{.strides = {kStick}},
                   {.form = OperandForm::SPLAT_STORE, .strides = {kStick}, .argument = 1}};
  spec.body = {{LOAD, 0, 0}};
  spec.reductions = {{0, 0, 0}};
  spec.reduce_lanes = true;
  spec.epilogue = {{STORE, 1, 0}};
  return spec;
}

}  // namespace

TEST(bits_of_ranges_are_those_counted_one_by_one) {
  for (int first = 0; first < 128; first++) {
    for (int count = 0; first + count <= 128; count++) {
      const Bits bits = Bits::range(first, count);
      for (int i = 0; i < 128; i++) CHECK_EQ(bits.has(i), i >= first && i < first + count);
    }
  }
}

TEST(a_right_program_is_left_alone) {
  CheckedRig rig;
  rig.add(4);
  rig.add_empty(4);
  CHECK_EQ(rig.check({tile_step(exponential())}), "");
  CHECK(
      rig.sanitizer.device().state(rig.sanitizer.offset_of(rig.arguments[1]) / kStick).data.all());
}

TEST(a_launch_like_a_clean_one_is_known_and_leaves_the_same) {
  CheckedRig rig;
  rig.add(4, 40);
  rig.add_empty(4);
  CHECK_EQ(rig.check({tile_step(exponential())}), "");
  CHECK(!rig.was_known);
  std::vector<StickState> followed;
  for (int i = 0; i < 4; i++) {
    followed.push_back(rig.state(1, i));
    rig.set_state(1, i, {});  // as if it were allocated anew
  }
  CHECK_EQ(rig.launch_again(), "");
  CHECK(rig.was_known);
  for (int i = 0; i < 4; i++) {
    const StickState state = rig.state(1, i);
    CHECK(state.data == followed[i].data && state.data == Bits::range(0, 80));
    CHECK_EQ(state.core, followed[i].core);
    CHECK(state.run > followed[i].run);
    CHECK_EQ(rig.sanitizer.describe_run(state.run, state.core),
             rig.sanitizer.describe_run(followed[i].run, followed[i].core));
  }
}

TEST(a_launch_that_begins_with_other_data_is_followed_again) {
  CheckedRig rig;
  rig.add(4);
  rig.add_empty(4);
  CHECK_EQ(rig.check({tile_step(lane_sum(~uint64_t{0}))}), "");
  const StickState data = rig.state(0, 2);
  rig.set_state(0, 2, {Bits::range(0, 126), data.run, kNoCore, 0});
  CHECK(has(rig.launch_again(), "reads padding as data"));
  rig.set_state(0, 2, {});
  CHECK(has(rig.launch_again(), "reads bytes that nobody wrote"));
  rig.set_state(0, 2, data);
  CHECK_EQ(rig.launch_again(), "");
  CHECK(rig.was_known);
}

TEST(a_launch_with_tensors_that_are_the_same_or_smaller_is_followed_again) {
  CheckedRig rig;
  rig.add(4);
  rig.add(4);
  CHECK_EQ(rig.check({tile_step(exponential())}), "");
  const std::vector<Address> both = rig.arguments;
  rig.arguments[1] = both[0];
  CHECK_EQ(rig.launch_again(), "");
  CHECK(!rig.was_known);
  rig.arguments = both;
  rig.add(3);
  rig.arguments = {both[0], rig.arguments[2]};
  CHECK(has(rig.launch_again(), "writes outside of its tensor"));
}

TEST(a_launch_with_parts_of_one_tensor_is_never_known) {
  CheckedRig rig;
  rig.add(8);
  rig.arguments.push_back(rig.arguments[0] + 4 * kStick);
  rig.load({tile_step(exponential())});
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(rig.launch_again(), "");
    CHECK(!rig.was_known);
  }
}

TEST(a_launch_that_reads_what_was_in_a_scratchpad_is_never_known) {
  CheckedRig rig;
  rig.add(4);
  rig.add_empty(4);
  TileSpec spec = exponential();
  spec.operands[0].space = Space::LX;
  rig.load({tile_step(spec)});
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(rig.launch_again(), "");
    CHECK(!rig.was_known);
  }
}

TEST(an_address_behind_the_tensor_is_found_before_the_step_runs) {
  CheckedRig rig;
  rig.add(4);
  rig.add_empty(4);
  rig.data<uint16_t>(1)[0] = 77;
  const std::string found = rig.check({tile_step(exponential({0, 384}))});
  CHECK(has(found, "reads outside of its tensor"));
  CHECK(has(found, "argument 0"));
  CHECK(has(found, "core     1"));
  CHECK_EQ(rig.data<uint16_t>(1)[0], 77);
}

TEST(a_stick_that_nobody_wrote_is_found) {
  CheckedRig rig;
  rig.add_empty(4);
  rig.add_empty(4);
  const std::string found = rig.check({tile_step(exponential())});
  CHECK(has(found, "reads bytes that nobody wrote"));
  CHECK(has(found, "by nobody since it was allocated"));
}

TEST(memory_of_a_freed_tensor_is_found) {
  CheckedRig rig;
  rig.add(4);
  rig.add_empty(4);
  const Address freed = rig.memory.allocate(512)->address;
  rig.memory.free(const_cast<Block*>(rig.memory.find(freed)));
  TileSpec spec = exponential();
  spec.operands[0].space = Space::DEVICE;
  spec.operands[0].offsets = {static_cast<int64_t>(freed), static_cast<int64_t>(freed)};
  CHECK(has(rig.check({tile_step(spec)}), "memory that no tensor has: it was freed"));
}

TEST(two_cores_that_write_one_stick_are_found) {
  CheckedRig rig;
  rig.add(4);
  rig.add_empty(4);
  const std::string found = rig.check({tile_step(exponential({0, 256}, {0, 128}))});
  CHECK(has(found, "writes a stick that another core writes in the same step"));
  CHECK(has(found, "operation tile of kernel, core 0"));
}

TEST(lanes_without_data_in_a_sum_are_found) {
  CheckedRig rig;
  rig.add(4, 40);
  rig.add_empty(4);
  CHECK_EQ(rig.check({tile_step(lane_sum((uint64_t{1} << 40) - 1))}), "");
  const std::string found = rig.check({tile_step(lane_sum((uint64_t{1} << 41) - 1))});
  CHECK(has(found, "reads padding as data"));
  CHECK(has(found, "lane 40"));
  CHECK(has(found, "by a copy of the host"));
}

TEST(padding_stays_padding_through_pointwise_operations) {
  CheckedRig rig;
  rig.add(4, 40);
  rig.add_empty(4);
  CHECK_EQ(rig.check({tile_step(exponential())}), "");
  rig.arguments = {rig.arguments[1], rig.arguments[0]};
  CHECK(has(rig.check({tile_step(lane_sum(~uint64_t{0}))}), "reads padding as data"));
}

TEST(an_address_behind_the_scratchpad_is_found) {
  CheckedRig rig;
  rig.add(4);
  rig.add_empty(4);
  TileSpec spec = exponential();
  spec.operands[1].space = Space::LX;
  spec.operands[1].argument = 0;
  spec.operands[1].offsets = {0, (1 << 16) - 128};
  CHECK(has(rig.check({tile_step(spec)}), "writes outside of the scratchpad"));
}

TEST(a_buffer_that_is_read_after_another_one_took_its_place_is_found) {
  CheckedRig rig;
  rig.add(4);
  rig.add_empty(4);
  rig.names.operations = {{"0_exp", "a.py:1"}, {"1_exp", "a.py:2"}, {"2_exp", "a.py:3"}};
  rig.names.steps = {{0}, {1}, {2}};
  // kept lives from operation 0 to 2, late from 1 on, and the plan puts both at byte 0.
  rig.names.buffers = {{"kept", Space::LX, 0, 0, 256, 0, 2, true},
                       {"late", Space::LX, 0, 4096, 256, 1, 1, true}};
  const auto in_lx = [](TileSpec spec, size_t operand, int64_t offset) {
    spec.operands[operand].space = Space::LX;
    spec.operands[operand].argument = 0;
    spec.operands[operand].offsets = {offset, offset};
    return spec;
  };
  const auto steps = [&](int64_t late) {
    return std::vector<Words>{tile_step(in_lx(exponential(), 1, 0)),
                              tile_step(in_lx(exponential(), 1, late)),
                              tile_step(in_lx(exponential(), 0, 0))};
  };
  CHECK_EQ(rig.check(steps(4096)), "");
  rig.names.buffers[1].offset = 0;
  rig.names.buffers[0].last = 0;
  rig.names.buffers.push_back({"kept", Space::LX, 0, 0, 256, 2, 2, false});
  const std::string found = rig.check(steps(0));
  CHECK(has(found, "reads a buffer after its space was given away"));
  CHECK(has(found, "which holds late now"));
  CHECK(has(found, "a.py:3"));
}

TEST(a_span_above_the_limit_is_found) {
  CheckedRig rig;
  rig.add((300 << 20) / kStick);
  rig.add_empty(4);
  TileSpec spec = exponential({0, 0});
  spec.operands[0].strides = {290 << 20};
  CHECK(has(rig.check({tile_step(spec)}), "reaches over more memory than a core can address"));
}

TEST(what_is_computed_from_other_sticks_than_the_operations_say_is_found) {
  CheckedRig rig;
  rig.add(4);
  rig.add_empty(4);
  rig.reference = {tile_step(exponential())};
  CHECK_EQ(rig.check({tile_step(exponential())}), "");
  const std::string found = rig.check({tile_step(exponential({0, 0}))});
  CHECK(has(found, "made of other sticks"));
  CHECK(has(found, "argument 1"));
  TileSpec shorter = exponential();
  shorter.extents = {{2}, {1}};
  CHECK(has(rig.check({tile_step(shorter)}), "does not write a stick that its operations write"));
}

TEST(operands_of_a_sum_may_change_places_those_of_a_difference_may_not) {
  CheckedRig rig;
  rig.add(2);
  rig.add(2);
  rig.add_empty(2);
  const auto binary = [](int64_t opcode, int first, int second) {
    TileSpec spec{.lanes = 64, .kept = 1, .extents = {{2}}};
    spec.operands = {{.strides = {kStick}, .argument = first},
                     {.strides = {kStick}, .argument = second},
                     {.strides = {kStick}, .argument = 2}};
    spec.body = {{LOAD, 0, 0}, {LOAD, 1, 1}, {opcode, 0, 0, 1}, {STORE, 2, 0}};
    return tile_step(spec);
  };
  rig.reference = {binary(ADD, 0, 1)};
  CHECK_EQ(rig.check({binary(ADD, 1, 0)}), "");
  rig.reference = {binary(SUB, 0, 1)};
  CHECK(has(rig.check({binary(SUB, 1, 0)}), "made of other sticks"));
}

TEST(after_it_is_off_nothing_is_noted) {
  CheckedRig rig;
  CHECK(is_sanitizing());
  rig.sanitizer.disable();
  CHECK(!is_sanitizing());
  rig.add_argument(512);
}
