// Machine code that was made while the program runs, in memory that can be executed.
//
// Example: auto code = MachineCode::make(bytes); if (code) code->entry<void (*)(int)>()(3);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace spyre::card {

class MachineCode {
 public:
  // Nothing where the system forbids such memory; everybody has a way to do without.
  static std::unique_ptr<MachineCode> make(const std::vector<uint8_t>& bytes);
  ~MachineCode();
  MachineCode(const MachineCode&) = delete;
  MachineCode& operator=(const MachineCode&) = delete;

  template <class Function>
  Function entry() const {
    return reinterpret_cast<Function>(memory_);
  }
  size_t bytes() const { return bytes_; }

 private:
  MachineCode(void* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}

  void* memory_;
  size_t bytes_;
};

}  // namespace spyre::card
