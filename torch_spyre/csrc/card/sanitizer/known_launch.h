// Launches that were followed access by access and found clean, so that others like them need not
// be.
//
// What a program does to the shadows depends on its words, on the sizes of its arguments and on
// which of them are the same tensor, and on which bytes of the sticks that it finds hold data: on
// nothing else, as long as no index decides what it touches. A KnownLaunch has noted all of that,
// and what the launch left. When the next launch begins with the same, following it would find the
// same, nothing, and leave the same. That is noted instead.
//
// Example: y = x + 1 for a second x of the same size; its 512 sticks are all data: the 512 sticks
// of y are data then, written by that step on those cores.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sanitizer/shadow.h"

namespace spyre::card {

class Sanitizer;

// Where something lies: the bytes of an argument in the shadow of the device memory.
struct ShadowRange {
  Shadow* shadow = nullptr;
  int64_t low = 0, high = 0;
};

struct KnownLaunch {
  // Sticks of an argument that follow each other, from one on. Those never written are no data.
  struct Found {
    int argument;
    int64_t first, count;
    Bits data;
    bool is_written;
  };
  // The same, of an argument or of the scratchpad of a core.
  struct Left {
    int argument, core;  // one of them is -1
    int64_t first, count;
    StickState state;  // its run is a number in `writers`
  };
  // A part of all scratchpads that an intermediate took over.
  struct Begun {
    int64_t offset, bytes;
    uint16_t buffer;
  };
  std::vector<int64_t> kind;  // sizes of the arguments, and which are the same
  std::vector<Found> found;
  std::vector<Begun> begun;
  std::vector<Left> left;
  std::vector<std::string> writers;

  bool meets(std::span<const int64_t> kind, std::span<const ShadowRange> arguments) const;
  void leave(Sanitizer& sanitizer, std::span<const ShadowRange> arguments, uint64_t launch) const;
};

// Those of a program: the last few.
class KnownLaunches {
 public:
  std::shared_ptr<const KnownLaunch> find(std::span<const int64_t> kind,
                                          std::span<const ShadowRange> arguments) const;
  void add(std::shared_ptr<const KnownLaunch> launch);

 private:
  std::vector<std::shared_ptr<const KnownLaunch>> launches_;
  size_t next_ = 0;
};

// Makes a KnownLaunch while a launch is followed.
class LaunchRecorder {
 public:
  LaunchRecorder() = default;  // of a launch that will not be known
  // The pool is an argument that holds nothing at the begin, or -1.
  LaunchRecorder(std::vector<int64_t> kind, std::span<const ShadowRange> arguments, int pool);

  // A stick of an argument is looked at that was not written in this launch.
  void finds(int argument, int64_t at) {
    if (!is_on_) return;
    Argument& own = arguments_[argument];
    if (!own.needed.empty()) own.needed[(at - own.range.low) / kChunkBytes] = 1;
  }
  void begins(const KnownLaunch::Begun& begun) { begun_.push_back(begun); }
  void give_up() { is_on_ = false; }

  // Null when it cannot be known. Given are what it wrote: by argument, by scratchpad.
  std::shared_ptr<const KnownLaunch> finish(Sanitizer& sanitizer, uint32_t first_run,
                                            std::span<const ShadowRange> written,
                                            std::span<const ShadowRange> written_lx) const;

 private:
  static constexpr int64_t kChunkBytes = 64 * kStickBytes;
  struct Argument {
    ShadowRange range;
    std::vector<KnownLaunch::Found> found;  // all of it, as the launch found it
    std::vector<uint8_t> needed;            // by chunk
  };
  bool is_on_ = false;
  std::vector<int64_t> kind_;
  std::vector<Argument> arguments_;
  std::vector<KnownLaunch::Begun> begun_;
};

}  // namespace spyre::card
