// The program container: what lies in program memory where a compute step starts, and what runs it.
//
// A program begins with a header of 16 bytes, little endian; the steps follow as 64-bit words:
//
//   byte  0  magic "SPYREPRG"
//   byte  8  uint32 version: 5
//   byte 12  uint32 number of words; 0 is the empty program, which does nothing
//
// docs/formats/program.md has the words of the steps. Reading them is done once, running them any
// number of times:
//
//   auto parsed = parse_program({address, bytes});
//   run_program(*parsed, arguments, {memory, pool, numerics, lx});
//
// Addresses of programs are those of the program segment, as the compiler sees them; the runtime
// maps the segment onto an allocation of the card.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "matmul/matmul.h"
#include "memory/memory.h"
#include "program/copy_step.h"
#include "program/counters.h"
#include "program/gather.h"
#include "program/ring.h"
#include "program/topk.h"
#include "step/steps.h"
#include "threads/thread_pool.h"
#include "tile/tile.h"

namespace spyre::card {

constexpr Address kProgramSegment = 0x1C'0000'0000;
constexpr Address kProgramSegmentEnd = 0x20'0000'0000;

constexpr std::string_view kProgramMagic = "SPYREPRG";
constexpr uint32_t kProgramVersion = 5;
constexpr size_t kProgramHeaderBytes = 16;

// A program in place: its first byte up to the end of its allocation.
struct Program {
  Address address = 0;  // in the program segment; for messages
  std::span<const std::byte> bytes;
};

// Runs the steps up to its end, which is the number of the first step after it, `count` times.
struct LoopStep {
  int64_t count = 0;
  size_t end = 0;
};

struct ProgramStep {
  StepHead head;
  std::variant<LoopStep, TileStep, MatmulStep, CopyStep, GatherStep, TopkStep, RingStep> what;
  Totals totals;  // of one run: those of its operations
};

const char* step_kind_name(int64_t kind);  // "tile", "matmul" ...

struct ParsedProgram {
  std::vector<ProgramStep> steps;  // a loop is followed by the steps that it repeats
  size_t bytes = 0;                // of the program, its header included
  double device_us = 0;            // modelled time of all steps, as often as loops repeat them
};

// Throws ProgramError for bytes that are no program of this card.
std::shared_ptr<const ParsedProgram> parse_program(const Program& program);

// Is told of each step before it runs.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void before(size_t step, std::span<const int64_t> loop_index) = 0;
};

// Runs a program to its end, on the calling thread and the pool. `arguments` are the device
// addresses of the tensors it was launched with. `counters`, if any, count what the steps do.
void run_program(const ParsedProgram& program, std::span<const Address> arguments,
                 const RunEnvironment& environment, Counters* counters = nullptr,
                 StepObserver* observer = nullptr);

// The text form of a program (init.txt): 256 hex digits a line are 128 bytes, the last pair of
// digits first; '#' starts a comment. Errors begin with "<name>:<line>: ".
std::vector<std::byte> parse_hex_program(std::string_view text, const std::string& name);

std::string hex_address(Address address);  // "0x1c00000000"

}  // namespace spyre::card
