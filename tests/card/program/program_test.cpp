// The container of device programs: reading it, loops, scratchpads, and every refusal.
#include "program/program.h"

#include <vector>

#include "numerics/dlfloat16.h"
#include "support/check.h"
#include "support/program_words.h"

using namespace words;

namespace {

constexpr DataFormat kFp32 = DataFormat::IEEE_FP32;

// out = in + 1 for one stick of float32.
TileSpec increment(int argument) {
  TileSpec spec{.lanes = 32, .extents = {{}}};
  spec.operands = {{.format = kFp32, .argument = argument},
                   {.format = kFp32, .argument = argument}};
  spec.body = {{LOAD, 0, 0}, {ADD_CONSTANT, 0, 0, -1, -1, 1.0f}, {STORE, 1, 0}};
  return spec;
}

Words begin_loop(int64_t count, int64_t depth, double us = 0) {
  return step_words(6, 0, depth, "", us, {count});
}
Words end_loop(int64_t depth) { return step_words(7, 0, depth, "", 0, {}); }

std::shared_ptr<const ParsedProgram> parse(const std::vector<std::byte>& bytes) {
  return parse_program({kProgramSegment, bytes});
}

TEST(an_empty_program_does_nothing) {
  Rig rig;
  rig.run({});
  CHECK_EQ(parse(program_of({}))->bytes, 16);
}

TEST(a_parsed_program_knows_its_length_its_names_and_its_time) {
  // Inside a loop every address has a stride more.
  TileSpec looped = increment(0);
  for (auto& o : looped.operands) o.loop_strides = {0};
  auto bytes = program_of({step_words(1, 1, 0, "ten letter", 2.5, tile_words(increment(0))),
                           begin_loop(3, 0, 1), tile_step(looped, 1, 4), end_loop(0)});
  bytes.resize(bytes.size() + 100);  // what lies behind it is not its own
  const auto program = parse(bytes);
  CHECK_EQ(program->bytes, bytes.size() - 100);
  CHECK_EQ(program->steps.size(), 3);
  CHECK_EQ(program->steps[0].head.name, "ten letter");
  CHECK_EQ(program->device_us, 2.5 + 1 + 3 * 4.0);
}

TEST(a_program_runs_any_number_of_times) {
  Rig rig;
  auto* x = reinterpret_cast<float*>(rig.add_argument(128));
  const auto program = parse(program_of({tile_step(increment(0)), tile_step(increment(0))}));
  for (int i = 0; i < 3; i++) {
    run_program(*program, rig.arguments, {rig.memory, rig.pool, rig.numerics, rig.lx.by_core()});
  }
  CHECK_EQ(x[0], 6);
  CHECK_EQ(x[31], 6);
}

TEST(nested_loops_move_addresses_by_their_strides) {
  Rig rig;
  const int64_t outer = 3, inner = 4;
  auto* x = reinterpret_cast<float*>(rig.add_argument(outer * inner * 128));
  auto* y = reinterpret_cast<float*>(rig.add_argument(128));
  TileSpec each = increment(0);
  for (auto& o : each.operands) o.loop_strides = {inner * 128, 128};
  TileSpec per_row = increment(1);
  for (auto& o : per_row.operands) o.loop_strides = {0};
  rig.run({begin_loop(outer, 0), begin_loop(inner, 1), tile_step(each, 2), tile_step(each, 2),
           end_loop(1), tile_step(per_row, 1), end_loop(0), tile_step(increment(1))});
  for (int i = 0; i < outer * inner; i++) CHECK_EQ(x[i * 32 + 7], 2);
  CHECK_EQ(y[0], outer + 1);
}

TEST(loops_of_count_zero_and_without_steps_do_nothing) {
  Rig rig;
  auto* x = reinterpret_cast<float*>(rig.add_argument(128));
  TileSpec looped = increment(0);
  for (auto& o : looped.operands) o.loop_strides = {0};
  rig.run({begin_loop(0, 0), tile_step(looped, 1), end_loop(0), begin_loop(5, 0), end_loop(0),
           tile_step(increment(0))});
  CHECK_EQ(x[0], 1);
}

// An operation that reads 2 x 3 sticks of device memory, of which two cores each have 3, and writes
// 5 sticks of its scratchpad on each core; its partial sums, 10 of them, go over 3 hops, and 7
// bytes more are on the ring.
Words work(int64_t loops, double us) {
  const Words flows = {0, 0, 128, 2, 2, 1, 2, 384, 3, 2, 3, 128, 1, 1, 128, 1, 5, 1, 5, 128};
  Words payload = {0, 0, 0, 3, 10, 7, 5, 2};
  append(payload, flows);
  return step_words(9, 2, loops, "add", us, payload);
}

TEST(works_are_counted_as_often_as_their_steps_run) {
  Rig rig;
  rig.add_argument(128);
  TileSpec looped = increment(0);
  for (auto& o : looped.operands) o.loop_strides = {0};
  Counters counters;
  const auto bytes = program_of({work(0, 1.5), tile_step(increment(0), 0, 0), begin_loop(4, 0),
                                 work(1, 2), work(1, 0.5), tile_step(looped, 1, 0), end_loop(0)});
  const auto program = parse_program({kProgramSegment, bytes});
  CHECK_EQ(program->device_us, 1.5 + 4 * 2.5);
  run_program(*program, rig.arguments, {rig.memory, rig.pool, rig.numerics, rig.lx.by_core()},
              &counters);
  const Totals totals = counters.get();
  CHECK_EQ(totals.device_us, 1.5 + 4 * 2.5);
  CHECK_EQ(totals.memory_read, 9 * 128 * 6);
  CHECK_EQ(totals.memory_written, 0);
  CHECK_EQ(totals.lx, 9 * 128 * 5 * 2);
  CHECK_EQ(totals.ring, 9 * (3 * 10 * 4 + 7));
  CHECK_EQ(totals.launches, 0);
  counters.reset();
  CHECK_EQ(counters.get().memory_read, 0);
}

TEST(a_work_without_its_step_is_refused) {
  const auto at_the_end = program_of({work(0, 1)});
  CHECK_THROWS(parse_program({kProgramSegment, at_the_end}), ProgramError, "has no step");
  const auto before_a_loop = program_of({work(0, 1), begin_loop(1, 0), end_loop(0)});
  CHECK_THROWS(parse_program({kProgramSegment, before_a_loop}), ProgramError, "has no step");
  Words huge = {
      0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 128, 2, 1, 1, int64_t{1} << 49, 0, 1, 1, int64_t{1} << 49, 0};
  const auto too_much = program_of({step_words(9, 1, 0, "add", 1, huge)});
  CHECK_THROWS(parse_program({kProgramSegment, too_much}), ProgramError, "more bytes");
}

TEST(scratchpads_are_private_and_keep_their_contents) {
  Rig rig;
  auto* x = reinterpret_cast<float*>(rig.add_argument(4 * 128));
  auto* y = reinterpret_cast<float*>(rig.add_argument(4 * 128));
  for (int i = 0; i < 128; i++) x[i] = static_cast<float>(i);
  TileSpec in{.lanes = 32, .extents = {{}, {}, {}, {}}};
  in.operands = {{.format = kFp32, .offsets = {0, 128, 256, 384}},
                 {.format = kFp32, .space = Space::LX, .offsets = {1024, 1024, 1024, 1024}}};
  in.body = {{LOAD, 0, 0}, {STORE, 1, 0}};
  TileSpec out = in;
  out.operands[0].argument = 1;
  out.body = {{LOAD, 0, 1}, {NEG, 0, 0}, {STORE, 0, 0}};
  rig.run({tile_step(in)});
  rig.run({tile_step(out)});  // another program
  for (int i = 0; i < 128; i++) CHECK_EQ(y[i], -x[i]);
}

TEST(device_addresses_are_used_as_they_are) {
  Rig rig;
  auto* x = reinterpret_cast<float*>(rig.add_argument(128));
  TileSpec spec = increment(0);
  for (auto& o : spec.operands) {
    o.space = Space::DEVICE;
    o.offsets = {static_cast<int64_t>(rig.arguments[0])};
  }
  rig.run({tile_step(spec)});
  CHECK_EQ(x[3], 1);
}

TEST(what_a_launch_lacks_is_an_error) {
  Rig rig;
  CHECK_THROWS(rig.run({tile_step(increment(0))}), ProgramError,
               "uses argument 0, but was launched with 0");
  TileSpec spec{.lanes = 32};
  spec.extents.assign(9, {});
  spec.operands = {{.format = kFp32, .space = Space::LX}};
  spec.body = {{LOAD, 0, 0}};
  CHECK_THROWS(rig.run({tile_step(spec)}), ProgramError, "scratchpad of core 8");
}

TEST(bytes_that_are_no_program_are_refused) {
  auto bytes = program_of({tile_step(increment(0))});
  CHECK_THROWS(parse({bytes.begin(), bytes.begin() + 15}), ProgramError, "found 15 bytes");
  CHECK_THROWS(parse({bytes.begin(), bytes.end() - 8}), ProgramError, "but its memory ends after");
  auto other = bytes;
  other[8] = std::byte{1};
  CHECK_THROWS(parse(other), ProgramError, "this card runs version 5");
  other[0] = std::byte{'s'};
  CHECK_THROWS(parse(other), ProgramError, "found 'sPYREPRG'");
}

TEST(malformed_steps_are_refused) {
  const Words good = tile_step(increment(0));
  const auto refused = [&](const char* part, std::vector<Words> steps) {
    CHECK_THROWS(parse(program_of(steps)), ProgramError, part);
  };
  Words bad = good;
  bad[0] = 12;
  refused("its kind is 12", {bad});
  bad[0] = 0;
  refused("its kind is 0", {good, bad});
  bad = good;
  bad[1] = 0;
  refused("step 0 has 0 words", {bad});
  bad[1] = static_cast<int64_t>(bad.size()) + 1;
  refused("are left", {bad});
  bad = good;
  bad[1]--;
  refused("it ends too early", {bad});
  bad = good;
  bad.push_back(0);
  bad[1]++;
  refused("more words than its kind needs", {bad});
  bad = good;
  bad[3] = 1;
  refused("says that 1 loops are around it", {bad});
  bad = good;
  bad[4] = -1;
  refused("the length of its name is -1", {bad});
  refused("ends inside a loop", {begin_loop(2, 0)});
  refused("none has begun", {end_loop(0)});
  refused("the count of a loop is -1", {begin_loop(-1, 0), end_loop(0)});
  refused("its time", {step_words(1, 1, 0, "t", -1, tile_words(increment(0)))});
  // Cut anywhere, a step is an error and nothing worse.
  for (size_t length = 6; length < good.size(); length++) {
    Words cut(good.begin(), good.begin() + length);
    cut[1] = static_cast<int64_t>(length);
    CHECK_THROWS(parse(program_of({cut})), ProgramError, "");
  }
}

}  // namespace
