// The runtime side of SpyreCode: a directory with spyrecode.json becomes a JobPlan, which can be
// launched any number of times.
//
//   auto plan = prepare_kernel("cache/add", /*stream=*/std::nullopt);
//   launch(plan, {x, y, out});  // queues the plan's steps on the current stream
//
// A plan owns its program memory on the card, one pinned host buffer per host handle, and its
// steps. Queued steps hold the plan, so the last reference may go on the card's executor thread:
// there must be no Python object inside.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "card/program/program.h"
#include "card/queue/queue.h"
#include "launch/spyrecode.h"
#include "runtime.h"

namespace spyre {
namespace card {
struct CheckedProgram;
}

// The program of a compute step as it was read last: steps of the plan may change its bytes.
struct LoadedProgram {
  std::vector<std::byte> bytes;
  std::shared_ptr<const card::ParsedProgram> parsed;  // null: not read yet
  // For the sanitizer, made when that first needs it.
  std::shared_ptr<const card::CheckedProgram> checked;
  std::shared_ptr<const card::ParsedProgram> parsed_to_check;  // what runs then
};

struct JobPlan {
  std::string label;  // begins the names of its jobs: "job plan <directory name>"
  c10::DeviceIndex device = 0;
  size_t allocation_size = 0;
  c10::DataPtr allocation;  // program memory; its data is a device address
  std::vector<PinnedBuffer> buffers;
  std::vector<Step> steps;
  std::vector<double> compute_us;  // by step: modelled time of its program
  std::vector<bool> small;         // by step: its program takes no time worth a thread
  // By step. Filled when the plan is made, then only touched by the card's executor thread.
  std::vector<LoadedProgram> programs;
  std::filesystem::path directory;  // that it was made from; empty for the older form

  // Launches share the pinned buffers and the program memory. The mutex keeps the steps of two
  // launches apart in the queue; a launch on another stream waits for the last use, which is first
  // the initial transfer.
  std::mutex launching;
  card::Mark last_use;

  std::string repr() const;
  const PinnedBuffer* find_buffer(const std::string& handle) const;  // null: no such handle
};
using JobPlanPtr = std::shared_ptr<JobPlan>;

// Reads and checks the directory, allocates on the card of the stream (default: the current stream
// of the current card) and queues the initial transfers there. Errors are RuntimeErrors in Python.
JobPlanPtr prepare_kernel(const std::filesystem::path& directory,
                          std::optional<c10::Stream> stream);

// Queues the steps on the current stream of the plan's card. Errors of a step itself are delivered
// by the next synchronisation.
void launch(const JobPlanPtr& plan, const std::vector<at::Tensor>& args);

// The older form of a kernel: bundle.mlir and a program as hex text. Prepared once per directory
// and card; runs on the card of the arguments, or on the current one when there are none.
void launch_kernel(const std::filesystem::path& directory, const std::vector<at::Tensor>& args);
void clear_kernel_cache();

}  // namespace spyre
