// Views, set_ and resize_. The layout lives on the storage, so the stock view code is right as it
// is; it only has to be registered for the device.

#include "hooks/views.h"

#include <ATen/InferSize.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "hooks/allocator.h"
#include "hooks/empty.h"
#include "hooks/storage.h"

namespace spyre {
namespace {

at::Tensor make_view(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

// Makes room for a tensor of these sizes and strides; what is there stays.
void grow_storage(SpyreStorageImpl& storage, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                  int64_t offset, c10::ScalarType dtype) {
  int64_t elem_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  size_t needed = at::detail::computeStorageNbytes(sizes, strides, elem_bytes, offset);
  if (needed <= storage.nbytes()) return;
  bool alone = offset == 0 && (!storage.tiling || storage.tiling->dtype == dtype);
  auto tiling = alone ? default_tiling(sizes, strides, dtype)
                      : flat_tiling(static_cast<int64_t>(needed) / elem_bytes, dtype);
  reshape_storage(storage, needed, tiling);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset,
                        c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  at::native::checkSetStorage(self, source, offset, sizes, strides);
  auto& storage = *spyre_storage(source);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (strides.data() != nullptr) {
    impl->set_sizes_and_strides(sizes, strides, offset);
  } else {
    impl->set_sizes_contiguous(sizes);
  }
  grow_storage(storage, self.sizes(), self.strides(), offset, self.scalar_type());
  // torch.load fills a byte storage first and says here what it is: from now on it can be tiled.
  // Byte tensors stay as they are, because that is how PyTorch itself looks at whole storages.
  bool whole = offset == 0 && storage.nbytes() > 0 &&
               at::detail::computeStorageNbytes(self.sizes(), self.strides(),
                                                self.element_size()) == storage.nbytes();
  if (!storage.tiling && whole && self.scalar_type() != at::kByte) {
    if (auto tiling = default_tiling(self.sizes(), self.strides(), self.scalar_type())) {
      reshape_storage(storage, storage.nbytes(), tiling);
    }
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  return at::native::set_(self, source);
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef symbolic,
                         std::optional<at::MemoryFormat> format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(symbolic);
  if (self.sizes() == sizes && !format) return self;
  at::detail::check_size_nonnegative(sizes);
  auto strides = strides_for(sizes, format);
  // First the memory, then the shape: running out of memory must leave the tensor as it was.
  grow_storage(*spyre_storage(self), sizes, strides, self.storage_offset(), self.scalar_type());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return self;
}

bool shallow_copy_compatible(const at::Tensor& self, const at::Tensor& from) {
  return self.key_set() == from.key_set() || from.device().type() == kSpyre;
}

// Queued work keeps its blocks by itself; the check is that the stream is one of ours.
void record_stream(at::Tensor& self, at::Stream stream) {
  TORCH_CHECK(stream.device() == self.device(), "record_stream of a tensor on ", self.device(),
              " needs a spyre stream of that card, got one of ", stream.device());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("as_strided", make_view);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("resize_", resize);
  m.impl("_has_compatible_shallow_copy_type", shallow_copy_compatible);
  m.impl("record_stream", record_stream);
}

}  // namespace

std::optional<card::StickLayout> get_layout(const at::Tensor& self) {
  TORCH_CHECK(self.device().type() == kSpyre, "expected a spyre tensor, got one on ",
              self.device());
  auto& tiling = spyre_storage(self)->tiling;
  if (!tiling) return std::nullopt;
  return tiling->placement.layout;
}

at::Tensor as_strided_with_layout(const at::Tensor& self, c10::IntArrayRef sizes,
                                  c10::IntArrayRef strides, std::optional<int64_t> offset,
                                  const card::StickLayout& layout) {
  auto own = get_layout(self);
  if (own && *own == layout) return make_view(self, sizes, strides, offset);
  auto& storage = *spyre_storage(self);
  auto tiling = explicit_tiling(sizes, strides, self.scalar_type(), layout);
  auto* block = storage.block();
  size_t available = block == nullptr ? 0 : block->size;
  TORCH_CHECK_VALUE(static_cast<size_t>(layout.bytes()) <= available, layout.repr(), " needs ",
                    layout.bytes(), " bytes, the tensor's memory has ", available);
  size_t nbytes =
      at::detail::computeStorageNbytes(sizes, strides, self.element_size(), offset.value_or(0));
  auto alias = c10::make_intrusive<SpyreStorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                     alias_of(self.storage()), allocator(),
                                                     /*resizable=*/false);
  alias->tiling = std::move(tiling);
  auto result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(alias)),
                                                         self.key_set(), self.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return result;
}

at::Tensor reinterpret_tensor(const at::Tensor& self, c10::IntArrayRef sizes,
                              c10::IntArrayRef strides, int64_t offset_increment) {
  return make_view(self, sizes, strides, self.storage_offset() + offset_increment);
}

void set_layout(const at::Tensor& self, const card::StickLayout& layout) {
  auto own = get_layout(self);
  if (own && *own == layout) return;
  auto& storage = *spyre_storage(self);
  size_t whole =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.element_size());
  TORCH_CHECK_VALUE(self.storage_offset() == 0 && whole == storage.nbytes(),
                    "the layout belongs to the storage: set it through a tensor that covers the "
                    "whole storage, not a view");
  reshape_storage(storage, storage.nbytes(),
                  explicit_tiling(self.sizes(), self.strides(), self.scalar_type(), layout));
}

}  // namespace spyre
