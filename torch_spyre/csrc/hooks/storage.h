// A storage on the card: PyTorch's StorageImpl plus how its elements are tiled.
//
// The tiling belongs to the storage, so every view, alias, Parameter and saved tensor shares it.
// `nbytes()` stays the logical size. A storage without tiling holds the host's bytes as they are:
// dtypes that have no device format, 64-bit integers that do not fit 32 bits, byte storages made by
// torch.load before their dtype is known.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <mutex>

#include "card/memory/dma.h"
#include "card/memory/layout.h"
#include "card/memory/memory.h"
#include "runtime.h"

namespace spyre {

struct Tiling {
  card::Placement placement;
  c10::ScalarType dtype;
};
using TilingPtr = std::shared_ptr<const Tiling>;

struct SpyreStorageImpl final : c10::StorageImpl {
  using c10::StorageImpl::StorageImpl;
  TilingPtr tiling;  // null: untiled
  // Held while elements are addressed or laid out again. Queued jobs need no lock: they have the
  // addresses, and hold the block.
  mutable std::recursive_mutex mutex;

  card::Block* block() const;  // null for an empty storage
  void place(c10::DataPtr data, TilingPtr tiling);
};

// PyTorch makes plain storages over device addresses here and there (writing a storage to a file).
// Such a tensor again, over a storage that knows its tiling; others as they are.
at::Tensor with_spyre_storage(const at::Tensor& tensor);

SpyreStorageImpl* spyre_storage(const at::Tensor& tensor);
SpyreStorageImpl* spyre_storage(const c10::Storage& storage);

// True when two tensors of one storage are the same elements, read in the same way.
bool same_view(const at::Tensor& a, const at::Tensor& b);

// Tilings. The default one follows the documented rule; tensors that it cannot express (rank above
// 6, strides with holes) get a flat one, sticks of consecutive elements. Null for carried dtypes.
TilingPtr default_tiling(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
TilingPtr flat_tiling(int64_t elements, c10::ScalarType dtype);
TilingPtr explicit_tiling(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                          const card::StickLayout& layout);

c10::intrusive_ptr<SpyreStorageImpl> new_storage(size_t nbytes, TilingPtr tiling,
                                                 c10::DeviceIndex device);
at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                      c10::DeviceIndex device, TilingPtr tiling);
at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                      c10::DeviceIndex device);

// The storage as the host would hold it: de-tiled bytes, holes zero; and its inverse.
at::Tensor read_image(SpyreStorageImpl& storage);
void write_image(SpyreStorageImpl& storage, const at::Tensor& bytes);

// Gives the storage another size or tiling; as many leading bytes as fit keep their values.
void reshape_storage(SpyreStorageImpl& storage, size_t nbytes, TilingPtr tiling);

// Turns the storage into an untiled one because a 64-bit value does not fit. Warns.
void carry(SpyreStorageImpl& storage);

// The card's view of a storage for the copy engines.
card::CardSide card_side(const SpyreStorageImpl& storage, int64_t untiled_elem_bytes);

}  // namespace spyre
