// The boxed path: any operation on spyre tensors, computed on the host.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <string>

namespace c10 {
class OperatorHandle;
}

namespace spyre {

// Computes an operation on the host: arguments on the stack, results in their place. `why` is for
// the warning.
void run_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack, const std::string& why);

// How often each operation ran on the host since the last reset, by full name ("aten::add.Tensor").
std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();

// A copy that changes the dtype on its way through the host: counted as aten::_copy_from.
void count_converting_copy();

// A call that the host computed: why, and what that cost.
struct FallbackReport {
  std::string op;
  std::string why;
  int64_t bytes_to_host = 0, bytes_to_card = 0;
  double milliseconds = 0;
};
// Called once per operation, after its first fallback, unless warnings are off. Set by Python.
void set_fallback_warner(void (*warner)(const FallbackReport& report));
bool get_fallback_warning();
void set_fallback_warning(bool enabled);

}  // namespace spyre
