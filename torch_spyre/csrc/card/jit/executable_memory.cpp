#include "jit/executable_memory.h"

#include <sys/mman.h>

#include <cstring>

namespace spyre::card {

std::unique_ptr<MachineCode> MachineCode::make(const std::vector<uint8_t>& bytes) {
  if (bytes.empty()) return nullptr;
  // Never writable and executable at once.
  void* memory =
      mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::memcpy(memory, bytes.data(), bytes.size());
  if (mprotect(memory, bytes.size(), PROT_READ | PROT_EXEC) != 0) {
    munmap(memory, bytes.size());
    return nullptr;
  }
  return std::unique_ptr<MachineCode>(new MachineCode(memory, bytes.size()));
}

MachineCode::~MachineCode() { munmap(memory_, bytes_); }

}  // namespace spyre::card
