#include "eager/late_fallbacks.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <mutex>

namespace spyre {
namespace {

// Kinds of tensors that the card does not have. Without these, PyTorch reports a missing kernel of
// an unknown backend.
void refuse(const c10::OperatorHandle& op, const char* kind) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), ": ", kind,
                              " tensors do not exist on spyre; keep them on the cpu");
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "sparse"); }
void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "quantized");
}

// The first tensor of a process can be one of these: what makes tensors from options alone is
// refused from the beginning.
template <auto* refusal>
void refuse_makers(torch::Library& m) {
  for (const char* name :
       {"empty.memory_format", "empty_strided", "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized", "_sparse_coo_tensor_with_dims",
        "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_compressed_tensor_with_dims"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<refusal>());
  }
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) { refuse_makers<&refuse_sparse>(m); }
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) { refuse_makers<&refuse_sparse>(m); }
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { refuse_makers<&refuse_quantized>(m); }

void add(c10::DispatchKey key, torch::CppFunction function) {
  // Never deregistered: that would go over all operators again, at the end of the process.
  auto* library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(std::move(function));
}

}  // namespace

void register_late_fallbacks() {
  static std::once_flag once;
  std::call_once(once, [] {
    using torch::CppFunction;
    using K = c10::DispatchKey;
    add(K::AutocastPrivateUse1,
        CppFunction::makeFallthrough());  // what hooks/autocast.cpp does not name
    add(K::SparsePrivateUse1, CppFunction::makeFromBoxedFunction<&refuse_sparse>());
    add(K::SparseCsrPrivateUse1, CppFunction::makeFromBoxedFunction<&refuse_sparse>());
    add(K::QuantizedPrivateUse1, CppFunction::makeFromBoxedFunction<&refuse_quantized>());
  });
}

}  // namespace spyre
