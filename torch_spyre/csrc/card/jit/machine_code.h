// From a VectorCode to machine code that runs it on groups of lanes.
//
// Registers hold values from where they are made to where they are used last; constants that are
// used often have registers of their own, others are read from memory. Code that needs more
// registers than there are is refused, as is everything on processors without AVX-512.
//
// Example: auto f = compile_vectors(code, 64); VectorFrame frame; ...; f->run(frame);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "jit/executable_memory.h"
#include "jit/vector_ir.h"

namespace spyre::card {

constexpr int kMaxStreams = 64;
constexpr int kMaxGuards = 4;

// Of the magnitudes of codes, each in 32 lanes: twice the least one, twice the difference to the
// most.
struct alignas(64) CodeLimits {
  uint16_t least[32], span[32];

  void set(uint16_t from, uint16_t to) {
    std::fill_n(least, 32, static_cast<uint16_t>(2 * from));
    std::fill_n(span, 32, static_cast<uint16_t>(2 * (to - from)));
  }
};

// What compiled code runs on: parts of so many groups, and for each stream where the first group of
// a part is and how far the next one is from it. Code moves `at` as it goes, and counts `cold` down
// with each 32 lanes that a guard has sent to the cold form.
struct VectorFrame {
  int64_t groups = 0;  // for run(); of parts it is in `starts`
  struct Stream {
    std::byte* at;
    int64_t step;
  };
  Stream streams[kMaxStreams];
  int64_t cold = 0;
  const CodeLimits* limits = nullptr;  // by number, for guards of codes
  int64_t parts = 0;
  // For each part its groups, at least one, then where each stream is. Code moves it.
  const int64_t* starts = nullptr;
  int64_t bytes_of_start = 0;
};

class CompiledVectors {
 public:
  CompiledVectors(std::unique_ptr<MachineCode> code, size_t streams)
      : code_(std::move(code)), streams_(streams) {}

  // At least one part.
  void run_parts(VectorFrame& frame) const;
  // One part, from the frame's own groups and streams.
  void run(VectorFrame& frame) const;
  size_t bytes() const { return code_->bytes(); }

 private:
  std::unique_ptr<MachineCode> code_;
  size_t streams_;
};

// Whether this processor can run compiled code.
bool has_vector_compiler();

// `lanes` of a group, a multiple of 32. `cold` is where guards of the code lead to; it has the same
// streams. Nothing when the code is refused.
std::unique_ptr<CompiledVectors> compile_vectors(VectorCode code, int lanes,
                                                 const VectorCode* cold = nullptr);

}  // namespace spyre::card
