#include "eager/cast.h"

#include "eager/eager.h"

namespace spyre {

bool cast_on_card(const at::Tensor& src, const at::Tensor& dst) {
  static const EagerDoor copy("aten::copy_");
  torch::jit::Stack stack = {dst, src, /*non_blocking=*/false};
  return copy.try_run(&stack);
}

}  // namespace spyre
