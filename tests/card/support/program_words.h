// Writes device programs for tests: what docs/formats/program.md says, as plain structs.
//
// Example:
//   TileSpec spec{.lanes = 64, .kept = 1, .extents = {{4}}};
//   spec.operands = {{.strides = {128}}, {.strides = {128}, .argument = 1}};
//   spec.body = {{LOAD, 0, 0}, {EXP, 0, 0}, {STORE, 1, 0}};
//   auto bytes = program_of({step_words(1, 1, 0, "exp", 2.5, tile_words(spec))});
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "card.h"
#include "jit/compile_tile.h"
#include "program/program.h"

namespace words {

using namespace spyre::card;
using Words = std::vector<int64_t>;
using Tail = std::pair<uint64_t, uint64_t>;  // lanes 0-63 and 64-127

inline void append(Words& to, const Words& more) { to.insert(to.end(), more.begin(), more.end()); }
inline int64_t float_word(float value) { return std::bit_cast<uint32_t>(value); }

struct OperandSpec {
  DataFormat format = DataFormat::SEN169_FP16;
  OperandForm form = OperandForm::VECTOR;
  Words strides = {};
  int64_t sub_stride = 128;
  Words limits = {};  // empty: none
  Space space = Space::ARGUMENT;
  int argument = 0;
  Words offsets = {};  // empty: zeros
  Words loop_strides = {};
};

struct InstructionSpec {
  int64_t opcode = 0, destination = -1, a = -1, b = -1, c = -1;
  float imm0 = 0, imm1 = 0;
};

struct TileSpec {
  int64_t lanes = 64, kept = 0, reduced = 0, stick_dim = -1;
  std::vector<Words> extents = {};  // by core
  std::vector<Tail> tails = {};     // by core; empty: all lanes
  std::vector<OperandSpec> operands = {};
  std::vector<InstructionSpec> body = {};
  struct Reduction {
    int64_t op, source, destination;
  };
  std::vector<Reduction> reductions = {};
  bool reduce_lanes = false;
  Words groups = {};
  std::vector<InstructionSpec> epilogue = {};
  struct Phase {
    std::vector<InstructionSpec> body;
    std::vector<Reduction> reductions = {};
    std::vector<InstructionSpec> epilogue = {};
  };
  std::vector<Phase> further = {};

  int cores() const { return static_cast<int>(extents.size()); }
};

inline Words address_words(const OperandSpec& operand, int cores) {
  Words result = {static_cast<int64_t>(operand.space), operand.argument};
  append(result, operand.offsets.empty() ? Words(cores, 0) : operand.offsets);
  append(result, operand.loop_strides);
  return result;
}

inline Words operand_words(const OperandSpec& operand, int cores) {
  Words result = {static_cast<int64_t>(operand.format), static_cast<int64_t>(operand.form)};
  append(result, operand.strides);
  result.push_back(operand.sub_stride);
  append(result, operand.limits.empty() ? Words(cores, -1) : operand.limits);
  append(result, address_words(operand, cores));
  return result;
}

inline void append_instructions(Words& to, const std::vector<InstructionSpec>& instructions) {
  to.push_back(static_cast<int64_t>(instructions.size()));
  for (const auto& in : instructions) {
    append(to, {in.opcode, in.destination, in.a, in.b, in.c, float_word(in.imm0),
                float_word(in.imm1), 0});
  }
}

inline Words tile_words(const TileSpec& spec) {
  Words result = {spec.lanes, spec.kept, spec.reduced, spec.stick_dim};
  for (const Words& extents : spec.extents) append(result, extents);
  for (int core = 0; core < spec.cores(); core++) {
    const auto tail = spec.tails.empty() ? Tail(~0ull, ~0ull) : spec.tails[core];
    append(result, {static_cast<int64_t>(tail.first), static_cast<int64_t>(tail.second)});
  }
  result.push_back(static_cast<int64_t>(spec.operands.size()));
  for (const auto& operand : spec.operands) append(result, operand_words(operand, spec.cores()));
  append_instructions(result, spec.body);
  result.push_back(static_cast<int64_t>(spec.reductions.size()));
  if (spec.reductions.empty()) return result;
  append(result, {spec.reduce_lanes, !spec.groups.empty()});
  append(result, spec.groups);
  for (const auto& r : spec.reductions) append(result, {r.op, r.source, r.destination});
  append_instructions(result, spec.epilogue);
  result.push_back(static_cast<int64_t>(spec.further.size()));
  for (const TileSpec::Phase& phase : spec.further) {
    append_instructions(result, phase.body);
    result.push_back(static_cast<int64_t>(phase.reductions.size()));
    for (const auto& r : phase.reductions) append(result, {r.op, r.source, r.destination});
    if (!phase.reductions.empty()) append_instructions(result, phase.epilogue);
  }
  return result;
}

inline Words step_words(int64_t kind, int64_t cores, int64_t loops, const std::string& name,
                        double us, const Words& payload) {
  Words result = {kind, 0, cores, loops, static_cast<int64_t>(name.size())};
  for (size_t i = 0; i < name.size(); i += 8) {
    uint64_t word = 0;
    for (size_t j = 0; j < 8 && i + j < name.size(); j++) {
      word |= uint64_t{static_cast<unsigned char>(name[i + j])} << 8 * j;
    }
    result.push_back(static_cast<int64_t>(word));
  }
  result.push_back(std::bit_cast<int64_t>(us));
  append(result, payload);
  result[1] = static_cast<int64_t>(result.size());
  return result;
}

inline Words tile_step(const TileSpec& spec, int64_t loops = 0, double us = 1) {
  return step_words(1, spec.cores(), loops, "tile", us, tile_words(spec));
}

inline std::vector<std::byte> program_of(const std::vector<Words>& steps) {
  Words all;
  for (const Words& step : steps) append(all, step);
  std::vector<std::byte> bytes(16 + 8 * all.size());
  const uint32_t header[2] = {kProgramVersion, static_cast<uint32_t>(all.size())};
  std::memcpy(bytes.data(), kProgramMagic.data(), 8);
  std::memcpy(bytes.data() + 8, header, 8);
  if (!all.empty()) std::memcpy(bytes.data() + 16, all.data(), 8 * all.size());
  return bytes;
}

// A small card to run programs on.
struct Rig {
  Memory memory{0, size_t{1} << 30};
  Scratchpads lx{8, size_t{1} << 16};
  ThreadPool pool{2};
  Numerics numerics = Numerics::DLFLOAT16;
  std::vector<Address> arguments = {};

  std::byte* add_argument(size_t bytes) {
    arguments.push_back(memory.allocate(bytes)->address);
    std::memset(host(arguments.size() - 1), 0, bytes);
    return host(arguments.size() - 1);
  }
  std::byte* host(size_t argument) { return memory.host(arguments[argument]); }
  template <class T>
  T* data(size_t argument) {
    return reinterpret_cast<T*>(host(argument));
  }
  void run(const std::vector<Words>& steps) {
    run_program(*parse_program({kProgramSegment, program_of(steps)}), arguments,
                {memory, pool, numerics, lx.by_core()});
  }
  // Interpreted.
  void run_with(const TileSpec& spec, Simd simd) {
    const Words payload = tile_words(spec);
    StepHead head{.kind = TILE, .cores = spec.cores(), .loops = 0, .name = "tile", .device_us = 0};
    WordReader reader(payload, "tile");
    TileStep step = parse_tile(reader, head);
    compile_tile(step);  // bodies as they are where machine code runs them
    run_tile(step, head, {{memory, pool, numerics, lx.by_core()}, arguments, {}}, simd);
  }
};

// The forms of SIMD that this processor has and that results are compared between.
inline std::vector<Simd> forms() {
  std::vector<Simd> result = {Simd::PORTABLE};
  if (has_simd(Simd::AVX2)) result.push_back(Simd::AVX2);
  return result;
}

}  // namespace words
