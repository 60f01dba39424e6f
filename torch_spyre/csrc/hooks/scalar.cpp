// tensor.item(): one element to the host.

#include <ATen/ops/_local_scalar_dense.h>
#include <torch/library.h>

#include "hooks/copy.h"

namespace spyre {
namespace {

at::Scalar local_scalar_dense(const at::Tensor& self) {
  return at::_local_scalar_dense(to_host(self));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_local_scalar_dense", local_scalar_dense); }

}  // namespace
}  // namespace spyre
