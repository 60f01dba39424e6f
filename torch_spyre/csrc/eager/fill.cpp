// Tensors made of numbers: fill_ and zero_, a number on the card that is copied to every element
// (no program: one would be compiled for each shape), and arange, written by the host as a table.
#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include "eager/eager.h"
#include "hooks/copy.h"

namespace spyre {
namespace {

at::Tensor& fill_with(at::Tensor& self, const at::Tensor& number) {
  at::assert_no_internal_overlap(self);
  if (self.numel() > 0) copy_tensor(number.expand(self.sizes()), self, /*non_blocking=*/false);
  return self;
}

// Of real types: PyTorch's error for a number that is not in the type's range.
void check_holds(c10::ScalarType type, const at::Scalar& value) {
  if (at::isComplexType(type) || at::isFloat8Type(type)) return;
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, type, "fill_",
                             [&] { (void)value.to<scalar_t>(); });
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  // As the host has it in this type, or refuses it: 0.1 is the float16 next to 0.1.
  const auto dtype = self.scalar_type();
  if (self.dim() > 0) check_holds(dtype, value);  // PyTorch makes scalars of any number
  const auto host = at::scalar_tensor(value, at::TensorOptions().dtype(dtype));
  const auto device = self.device().index();
  // Others are not kept: whoever fills tensors with many numbers would find them all in memory.
  const bool is_kept = !at::isComplexType(dtype) && (value.equal(0) || value.equal(1));
  return fill_with(self,
                   is_kept ? number_on_card(host.item(), dtype, device) : to_spyre(host, device));
}

at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  return fill_with(self, value);
}

at::Tensor& zero(at::Tensor& self) { return fill_scalar(self, 0); }

// Nothing is read from the card, so it is no fallback: a transfer, as of any table of the host's.
at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                       at::Tensor& out) {
  auto host = at::arange(start, end, step, at::TensorOptions().dtype(out.scalar_type()));
  if (out.numel() != host.numel()) {
    if (out.numel() > 0) {
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ",
                 out.numel(), " which does not match the computed number of elements ",
                 host.numel(), "; the out tensor is resized to (", host.numel(), ",)");
    }
    out.resize_(host.sizes());
  }
  if (out.numel() > 0) copy_tensor(host.view(out.sizes()), out, /*non_blocking=*/false);
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("fill_.Scalar", fill_scalar);
  m.impl("fill_.Tensor", fill_tensor);
  m.impl("zero_", zero);
  m.impl("arange.start_out", arange_out);
}

}  // namespace
}  // namespace spyre
