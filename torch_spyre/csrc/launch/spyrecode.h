// What lies in a SpyreCode directory, read and checked before anything is allocated.
//
// In: a directory with spyrecode.json and binary files, or one in the older form (bundle.mlir and a
// program as hex text). Out: a Recipe, from which job_plan makes a plan. Every fault is an error
// that names file, entry, property and value, and what is allowed.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spyre {

enum class StepType { H2D, D2H, COMPUTE, HOST_COMPUTE };
const char* name(StepType type);  // "H2D", "D2H", "Compute", "HostCompute"

// What a HostCompute step reads.
enum class HostInput { NOTHING, BUFFER, ADDRESSES };

struct Step {
  StepType type = StepType::COMPUTE;
  size_t offset = 0;  // into the program memory; unused by HostCompute
  size_t size = 0;    // bytes moved, or written by HostCompute
  size_t buffer = 0;  // which pinned buffer is moved or written
  HostInput input = HostInput::NOTHING;
  size_t input_buffer = 0;  // for HostInput::BUFFER
};

struct PinnedBuffer {
  std::string handle;
  size_t size = 0;
  c10::DataPtr data;

  std::byte* bytes() const { return static_cast<std::byte*>(data.get()); }
};

struct InitTransfer {
  size_t offset = 0;  // into the program memory
  std::shared_ptr<const std::vector<std::byte>> bytes;
};

// What a plan consists of, checked, before anything is allocated.
struct Recipe {
  size_t allocation_size = 0;
  std::vector<InitTransfer> inits;
  std::vector<PinnedBuffer> buffers;  // without memory yet
  std::vector<Step> steps;

  std::optional<size_t> find_buffer(const std::string& handle) const {
    for (size_t i = 0; i < buffers.size(); i++) {
      if (buffers[i].handle == handle) return i;
    }
    return std::nullopt;
  }
};

Recipe read_spyrecode(const std::filesystem::path& directory);
Recipe read_hex_kernel(const std::filesystem::path& directory, const std::string& directory_name);

}  // namespace spyre
