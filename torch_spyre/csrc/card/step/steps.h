// What all steps of a device program share: reading their words, the addresses of their operands,
// and what a running step may use. docs/formats/program.md has the words.
//
// Each kind of step has a struct, a parse function and a run function in a file of its own.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/memory.h"
#include "numerics/formats.h"
#include "threads/thread_pool.h"

namespace spyre::card {

struct ProgramError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Takes words one after another. Throws ProgramError past the end of the step and for impossible
// values; messages begin with the step's name.
class WordReader {
 public:
  WordReader(std::span<const int64_t> words, std::string name)
      : words_(words), name_(std::move(name)) {}

  int64_t next() {
    if (at_ >= words_.size()) fail("it ends too early");
    return words_[at_++];
  }
  // A value that must lie in [low, high].
  int64_t next(int64_t low, int64_t high, const char* what) {
    const int64_t value = next();
    if (value < low || value > high) {
      fail(std::string(what) + " is " + std::to_string(value) + ", allowed are " +
           std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
  }
  float next_float() { return std::bit_cast<float>(static_cast<uint32_t>(next())); }
  std::vector<int64_t> list(size_t count) {
    if (count > words_.size() - at_) fail("it ends too early");
    std::vector<int64_t> values(words_.begin() + at_, words_.begin() + at_ + count);
    at_ += count;
    return values;
  }
  DataFormat format() { return static_cast<DataFormat>(next(0, kNumDataFormats - 1, "a format")); }
  bool done() const { return at_ == words_.size(); }
  [[noreturn]] void fail(const std::string& what) const {
    throw ProgramError("step '" + name_ + "' of the program is malformed: " + what);
  }

 private:
  std::span<const int64_t> words_;
  size_t at_ = 0;
  std::string name_;
};

// As docs/formats/program.md numbers them.
enum StepKind : int64_t {
  TILE = 1,
  MATMUL,
  COPY_STEP,
  GATHER,
  TOPK,
  LOOP_BEGIN,
  LOOP_END,
  SCATTER,
  WORK,
  RING,
  CHOSEN_MATMUL
};

// The words that every step begins with.
struct StepHead {
  int64_t kind = 0;
  int cores = 0;
  int loops = 0;  // loops around it
  std::string name;
  double device_us = 0;
};

// LX is each core's own scratchpad. SHARED is what scratchpads hold, in one piece as a tensor in
// memory is: programs whose scratchpads are not looked into run so, with steps joined across cores.
enum class Space : int8_t { DEVICE = 0, ARGUMENT = 1, LX = 2, SHARED = 3 };

struct OperandAddress {
  Space space = Space::DEVICE;
  int argument = 0;
  std::vector<int64_t> offsets;  // one for each core
  std::vector<int64_t> loop_strides;
};

// What a card lends to its programs.
struct RunEnvironment {
  Memory& memory;
  ThreadPool& pool;
  Numerics numerics = Numerics::DLFLOAT16;
  std::span<std::byte* const> lx;  // scratchpads by core
  std::byte* shared = nullptr;     // what scratchpads hold, in one piece
  bool translates = true;          // tile programs run as machine code where they can
  bool pairs = false;              // products add by pairs where that pays
};

// What a step runs with.
struct RunContext : RunEnvironment {
  std::span<const Address> arguments;
  std::span<const int64_t> loop_index;  // of the loops around the step, outermost first
};

OperandAddress parse_address(WordReader& reader, const StepHead& head);
// Where the operand begins for a core, in host memory.
std::byte* resolve(const OperandAddress& address, int core, const RunContext& context);

}  // namespace spyre::card
