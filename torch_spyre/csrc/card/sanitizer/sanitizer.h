// Checks what device programs do to memory, access by access, before each step runs.
//
// A Sanitizer belongs to a card. While it is on it keeps a Shadow of the device memory and of each
// scratchpad: allocations, copies of the host and steps of programs are noted there. A launch is a
// CheckedLaunch: it observes the steps of a program, runs each of them on the shadows first
// (shadow_run), and throws SanitizerFindings at the end, or before a step that would leave its
// memory. docs/user_guide/sanitizer.md says what is found and what is not.
//
//   sanitizer.enable();
//   CheckedLaunch launch(sanitizer, description, arguments);
//   run_program(program, arguments, {memory, pool, numerics, lx}, &counters, &launch);
//   launch.finish();
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "memory/dma.h"
#include "memory/memory.h"
#include "program/program.h"
#include "sanitizer/known_launch.h"
#include "sanitizer/shadow.h"
#include "sanitizer/shadow_program.h"

namespace spyre::card {

// A fault, in words that people can follow.
struct Finding {
  std::string what;  // "reads bytes that nobody wrote"
  std::string kernel;
  std::string operation;  // the operations of the step
  std::string tensor;
  std::string address;
  std::string source;  // lines of the user's program
  std::string last_writer;
  int core = -1;  // -1: not one core's

  std::string text() const;
};

struct SanitizerFindings : std::runtime_error {
  explicit SanitizerFindings(std::vector<Finding> findings);
  std::vector<Finding> findings;
};

// Throws SanitizerFindings, or what the owner of the cards wants to have thrown instead.
[[noreturn]] void raise_findings(std::vector<Finding> findings);
void set_raise_findings(void (*raise)(const SanitizerFindings& findings));

// What the side data of a program says about it: SpyreCode's names.json.
struct ProgramNames {
  struct Operation {
    std::string name, source;
  };
  // A piece of the pool or of the scratchpads that holds one intermediate.
  struct Buffer {
    std::string name;
    Space space = Space::ARGUMENT;
    int argument = 0;
    int64_t offset = 0, bytes = 0;
    int first = 0, last = 0;  // operations that use it
    bool begins = false;      // the first one writes it

    bool overlaps(const Buffer& other) const {
      return space == other.space && argument == other.argument &&
             offset < other.offset + other.bytes && other.offset < offset + bytes;
    }
  };
  std::vector<std::string> arguments;
  int pool = -1;  // argument whose content is dead before and after
  std::vector<Operation> operations;
  std::vector<std::vector<int>> steps;  // by step of the program: its operations
  std::vector<Buffer> buffers;
};

// The tags that the operations of a bundle leave, one by one. They name the sticks that a launch
// begins with by their places in its arguments, so they are the same for all launches whose
// arguments have these sizes and are the same tensors in the same places.
struct ReferenceTags {
  struct Piece {
    int64_t low = 0;  // bytes from the begin of the argument, or of the scratchpad
    std::vector<uint64_t> tags;
    std::vector<bool> written;
  };
  std::vector<int64_t> launch;  // for each argument its size, and the first that is the same
  std::vector<Piece> arguments, scratchpads;
};

// A program with what is known about it.
struct CheckedProgram {
  std::string kernel;
  std::shared_ptr<const ShadowProgram> program;
  std::shared_ptr<const ShadowProgram> reference;  // its operations one by one; or null
  ProgramNames names;
  std::vector<Finding> plan;  // what is wrong with it before it runs
  mutable std::shared_ptr<const ReferenceTags> reference_tags;  // of the last kind of launch
  mutable KnownLaunches known;
};

// Of all cards of the process, since it began.
struct SanitizerCounts {
  int64_t followed = 0, known = 0;  // launches that ran to their end
  int64_t findings = 0;
};
SanitizerCounts sanitizer_counts();

// Intermediates that are placed where another one is still needed.
std::vector<Finding> check_plan(const std::string& kernel, const ProgramNames& names);

class Sanitizer final : public MemoryWatcher {
 public:
  Sanitizer(int card, Memory& memory, std::span<std::byte* const> lx, size_t lx_bytes,
            int64_t span_bytes);
  ~Sanitizer();

  // The card is idle. What is allocated then counts as data, whatever it holds.
  void enable();
  void disable();
  bool is_enabled() const { return enabled_.load(std::memory_order_acquire); }

  void allocated(Address address, size_t bytes) override;
  void freed(Address address, size_t bytes) override;

  Memory& memory() const { return memory_; }
  std::span<std::byte* const> lx() const { return lx_; }
  Shadow& device() { return *device_; }
  Shadow& scratchpad(int core) { return *scratchpads_[core]; }
  int scratchpads() const { return static_cast<int>(scratchpads_.size()); }
  int64_t span_bytes() const { return span_bytes_; }  // that a core may address of one tensor
  size_t offset_of(Address address) const { return address - base_; }
  Address address_of(size_t offset) const { return base_ + offset; }

  // Of the card that this memory of the host stands for; null when it is not checked.
  static Sanitizer* find(const std::byte* memory);

  // A writer; runs of the same name are different ones.
  uint32_t new_run(const std::string& who);
  std::string describe_run(uint32_t run, int core) const;
  std::string name_of_run(uint32_t run) const;
  uint64_t new_launch() { return ++launches_; }

 private:
  Memory& memory_;
  const Address base_;  // of the card's memory
  std::span<std::byte* const> lx_;
  size_t lx_bytes_;
  int64_t span_bytes_;
  std::atomic<bool> enabled_{false};
  std::unique_ptr<Shadow> device_;
  std::vector<std::unique_ptr<Shadow>> scratchpads_;
  uint64_t launches_ = 0;
  mutable std::mutex mutex_;    // guards the names of runs
  std::vector<uint32_t> runs_;  // number of the name, by run from FIRST_RUN on
  std::vector<std::string> names_;
  std::map<std::string, uint32_t> name_numbers_;
};

// One launch of a program.
class CheckedLaunch final : public StepObserver {
 public:
  CheckedLaunch(Sanitizer& sanitizer, std::shared_ptr<const CheckedProgram> program,
                std::span<const Address> arguments);

  void before(size_t step, std::span<const int64_t> loop_index) override;
  // Throws SanitizerFindings if there were any.
  void finish();
  // Whether it is like an earlier one that was clean: then its steps are not followed.
  bool is_known() const { return known_ != nullptr; }

 private:
  friend class ShadowRun;
  using Range = ShadowRange;
  std::vector<int64_t> kind() const;
  void find_reference_tags();
  void run_reference(size_t first, size_t last, std::vector<int64_t>& loop_index);
  ReferenceTags::Piece read_reference(const Range& range, int64_t start) const;
  uint64_t seed_of(int argument) const;
  void begin_buffer(size_t step, const ProgramNames::Buffer& buffer);
  void compare_flows();
  void compare_range(const Range& found, const ReferenceTags::Piece& wanted, int argument,
                     int core);
  void report(Finding finding, int64_t key);
  std::string step_name(size_t step) const;
  std::string step_source(size_t step) const;
  // The intermediates that the operations of a step may use.
  std::vector<const ProgramNames::Buffer*> buffers_of(size_t step) const;
  // The one of them that an address lies in; null when none does, or several do.
  const ProgramNames::Buffer* buffer_at(size_t step, Space space, int argument,
                                        int64_t offset) const;
  bool knows_buffers(Space space, int argument) const;
  int number_of(const ProgramNames::Buffer& buffer) const;  // from 1 on
  std::string tensor_name(Space space, int argument, const ProgramNames::Buffer* buffer) const;

  Sanitizer& sanitizer_;
  std::shared_ptr<const CheckedProgram> program_;
  std::vector<Address> arguments_;
  std::vector<Range> blocks_;  // by argument
  std::vector<int> same_as_;   // by argument: the first that is the same tensor
  // What the flow that runs writes: by argument, then by scratchpad.
  std::vector<Range> written_, written_lx_;
  uint64_t number_;
  uint32_t first_run_;  // later ones are of this launch
  std::vector<Finding> findings_;
  std::set<std::tuple<std::string, std::string, int64_t>> reported_;
  std::set<int> begun_;                       // numbers of buffers
  bool must_stop_ = false;                    // a step would leave its memory
  std::shared_ptr<const KnownLaunch> known_;  // that it is like, if there is one
  LaunchRecorder recorder_;
};

// ---- Copies of the host ------------------------------------------------------------------------

// Whether any card is being checked.
bool is_sanitizing();

class CopyChecker final : public CopyObserver {
 public:
  void host_writes(const CardSide& card, const View& view) override;
  // Throws SanitizerFindings when some elements were not written while others were.
  void host_reads(const CardSide& card, const View& view) override;
  // The data of one view goes to another, elements as they are.
  void card_copies(const CardSide& from, const View& from_view, const CardSide& to,
                   const View& to_view) override;
};

}  // namespace spyre::card
