// scaled_dot_product_attention without a gradient: one program, as the compiler makes it. PyTorch
// asks a device for its choice of implementations; "overrideable" is the one of devices that bring
// their own.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "eager/eager.h"
#include "hooks/storage.h"

namespace spyre {
namespace {

using at::Tensor;

bool needs_gradient(const Tensor& q, const Tensor& k, const Tensor& v) {
  return at::GradMode::is_enabled() &&
         (q.requires_grad() || k.requires_grad() || v.requires_grad());
}

// Fakes of a tracer say that they are on the card, but have no memory.
bool is_on_card(const Tensor& t) {
  return t.device().type() == kSpyre && t.has_storage() &&
         dynamic_cast<SpyreStorageImpl*>(t.storage().unsafeGetStorageImpl()) != nullptr;
}

int64_t choose(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>&,
               double dropout, bool, std::optional<double>, bool) {
  const bool ours = get_eager_on_card() && dropout == 0 && !needs_gradient(q, k, v) &&
                    is_on_card(q) && is_on_card(k) && is_on_card(v);
  return static_cast<int64_t>(ours ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
attention(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
          double dropout, bool is_causal, bool, std::optional<double> scale) {
  static const EagerDoor door("aten::scaled_dot_product_attention");
  const bool groups = q.dim() > 2 && k.dim() == q.dim() && q.size(-3) != k.size(-3);
  torch::jit::Stack stack = {q, k, v, bias, dropout, is_causal, scale, groups};
  Tensor result;
  if (door.try_run(&stack)) {
    result = stack.back().toTensor();
  } else {
    result = std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, bias, dropout, is_causal,
                                                                {}, scale, groups));
  }
  // What a backward pass would need: there is none.
  return {result, {}, {}, {}, q.sym_size(-2), k.sym_size(-2), {}, {}, {}};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", attention);
  m.impl("_fused_sdp_choice", choose);
}

}  // namespace
}  // namespace spyre

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &spyre::choose)
}
