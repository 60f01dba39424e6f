// Making tensors: aten::empty, aten::empty_strided and the forms with an explicit layout.

#include "hooks/empty.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like_compositeexplicitautograd_dispatch.h>
#include <c10/core/MemoryFormat.h>
#include <torch/library.h>

#include "hooks/storage.h"

namespace spyre {
namespace {

c10::DeviceIndex target_device(std::optional<at::Device> device) {
  return device ? resolve_device(*device) : current_device();
}

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!layout || *layout == c10::kStrided, "spyre tensors are strided; got layout ",
              *layout);
  TORCH_CHECK(!pin_memory || !*pin_memory, "Pin memory can only be on CPU");
}

c10::SmallVector<int64_t, 6> checked_contiguous_strides(c10::IntArrayRef sizes) {
  c10::SmallVector<int64_t, 6> strides(sizes.size());
  int64_t stride = 1;
  for (int64_t d = static_cast<int64_t>(sizes.size()) - 1; d >= 0; d--) {
    strides[d] = stride;
    TORCH_CHECK(!c10::mul_overflows(stride, std::max<int64_t>(sizes[d], 1), &stride),
                "sizes overflow: a tensor of shape ", sizes, " has more than 2^63 elements");
  }
  return strides;
}

at::Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<at::Device> device,
                               std::optional<bool> pin_memory,
                               std::optional<at::MemoryFormat> format) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  return new_tensor(sizes, strides_for(sizes, format), c10::dtype_or_default(dtype),
                    target_device(device));
}

at::Tensor make_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                              std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK(sizes.size() == strides.size(), "sizes ", sizes, " and strides ", strides,
              " differ in length");
  for (auto stride : strides)
    TORCH_CHECK(stride >= 0, "strides must not be negative, got ", strides);
  return new_tensor(sizes, strides, c10::dtype_or_default(dtype), target_device(device));
}

// Whether a tensor was given its layout, with whole sticks, in the shape that it has: the weight of
// a linear layer, for instance.
bool has_layout_of_its_own(const at::Tensor& self, const TilingPtr& tiling) {
  if (tiling == nullptr || self.storage_offset() != 0) return false;
  const auto& [layout, sizes, strides] = tiling->placement;
  return layout.arrangement == card::ElementArrangement::STANDARD && layout.stride_map.back() > 0 &&
         self.sizes() == c10::IntArrayRef(sizes.data(), sizes.size()) &&
         self.strides() == c10::IntArrayRef(strides.data(), strides.size());
}

// Preserves the layout on the card as well, so that the state of an optimizer lies as its weight.
at::Tensor empty_like(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout> layout, std::optional<at::Device> device,
                      std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  const bool preserves =
      format.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve &&
      dtype.value_or(self.scalar_type()) == self.scalar_type();
  const bool here = !device || device->type() == self.device().type();
  // None for a fake tensor, whose storage is on the meta device.
  const auto* storage = dynamic_cast<SpyreStorageImpl*>(self.storage().unsafeGetStorageImpl());
  if (storage != nullptr && preserves && here && layout.value_or(c10::kStrided) == c10::kStrided) {
    const auto tiling = storage->tiling;
    if (has_layout_of_its_own(self, tiling)) {
      check_options(layout, pin_memory);
      return new_tensor(self.sizes(), self.strides(), self.scalar_type(),
                        device ? target_device(device) : self.device().index(), tiling);
    }
  }
  return at::compositeexplicitautograd::empty_like(self, dtype, layout, device, pin_memory, format);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty_like", empty_like);
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", make_empty_strided);
}

}  // namespace

c10::SmallVector<int64_t, 6> strides_for(c10::IntArrayRef sizes,
                                         std::optional<at::MemoryFormat> format) {
  auto wanted = format.value_or(at::MemoryFormat::Contiguous);
  if (wanted == at::MemoryFormat::ChannelsLast || wanted == at::MemoryFormat::ChannelsLast3d) {
    auto strides = wanted == at::MemoryFormat::ChannelsLast
                       ? c10::get_channels_last_strides_2d(sizes)
                       : c10::get_channels_last_strides_3d(sizes);
    return {strides.begin(), strides.end()};
  }
  TORCH_CHECK(wanted == at::MemoryFormat::Contiguous || wanted == at::MemoryFormat::Preserve,
              "unsupported memory format ", wanted);
  return checked_contiguous_strides(sizes);
}

at::Tensor spyre_empty_with_layout(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                   at::ScalarType dtype, const card::StickLayout& layout) {
  return new_tensor(sizes, strides, dtype, current_device(),
                    explicit_tiling(sizes, strides, dtype, layout));
}

at::Tensor empty_with_layout(c10::IntArrayRef sizes, const card::StickLayout& layout,
                             std::optional<at::ScalarType> dtype, std::optional<at::Device> device,
                             std::optional<bool> pin_memory,
                             std::optional<at::MemoryFormat> format) {
  check_options(std::nullopt, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  auto strides = strides_for(sizes, format);
  auto type = c10::dtype_or_default(dtype);
  return new_tensor(sizes, strides, type, target_device(device),
                    explicit_tiling(sizes, strides, type, layout));
}

}  // namespace spyre
