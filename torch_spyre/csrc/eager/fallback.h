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

// Computes an operation on the host: arguments on the stack, results in their place.
void run_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// How often each operation ran on the host since the last reset, by full name ("aten::add.Tensor").
std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();

// A copy that changes the dtype on its way through the host: counted as aten::_copy_from.
void count_converting_copy();

// Called once per operation, on its first fallback, unless warnings are off. Set by Python.
void set_fallback_warner(void (*warner)(const std::string& op));
bool get_fallback_warning();
void set_fallback_warning(bool enabled);

}  // namespace spyre
