// Kinds of tensors that the card does not have. Without these, PyTorch reports a missing kernel of
// a backend that nobody has heard of.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace spyre {
namespace {

void refuse(const c10::OperatorHandle& op, const char* kind) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), ": ", kind,
                              " tensors do not exist on spyre; keep them on the cpu");
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "sparse"); }
void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "quantized");
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}

}  // namespace
}  // namespace spyre
