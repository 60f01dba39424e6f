#include "hooks/storage.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/SmallVector.h>

#include "hooks/allocator.h"
#include "hooks/copy.h"
#include "hooks/dtypes.h"

namespace spyre {
namespace {

constexpr int64_t kMaxTiledRank = 6;

c10::intrusive_ptr<c10::StorageImpl> create_storage(c10::StorageImpl::use_byte_size_t,
                                                    c10::SymInt nbytes, c10::DataPtr data,
                                                    c10::Allocator* allocator, bool resizable) {
  size_t bytes = nbytes.as_int_unchecked();
  if (!data && allocator != nullptr) data = allocator->allocate(bytes);
  return c10::make_intrusive<SpyreStorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               std::move(data), allocator, resizable);
}

struct RegisterStorage {
  RegisterStorage() { c10::SetStorageImplCreate(kSpyre, &create_storage); }
} g_register_storage;

bool is_dense(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  // The common case first: row-major.
  int64_t expected = 1;
  bool contiguous = true;
  for (int64_t d = static_cast<int64_t>(sizes.size()) - 1; d >= 0; d--) {
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) {
      contiguous = false;
      break;
    }
    expected *= sizes[d];
  }
  if (contiguous) return true;
  c10::SmallVector<std::pair<int64_t, int64_t>, 8> dims;
  for (size_t d = 0; d < sizes.size(); d++) {
    if (sizes[d] != 1) dims.emplace_back(strides[d], sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  expected = 1;
  for (auto [stride, size] : dims) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

TilingPtr make_tiling(card::StickLayout layout, card::Dims sizes, card::Dims strides,
                      c10::ScalarType dtype) {
  return std::make_shared<const Tiling>(
      Tiling{card::Placement{std::move(layout), std::move(sizes), std::move(strides)}, dtype});
}

size_t device_bytes(size_t nbytes, const Tiling* tiling) {
  return tiling == nullptr ? nbytes : std::max<size_t>(nbytes, tiling->placement.layout.bytes());
}

// Quantised and sub-byte dtypes have a documented format but no elements that DMA could address.
bool is_tileable(c10::ScalarType dtype) {
  auto format = device_format(dtype);
  return format != card::DataFormat::INVALID &&
         card::elems_per_stick(format) <= card::kStickBytes && !c10::isQIntType(dtype);
}

void check_may_carry(const SpyreStorageImpl& storage) {
  TORCH_CHECK(storage.resizable(),
              "an int64 value that needs more than 32 bits cannot be written through a second "
              "storage of the same memory");
  warn_downcast(/*values_do_not_fit=*/true);
}

}  // namespace

card::Block* SpyreStorageImpl::block() const { return block_of(data_ptr()); }

void SpyreStorageImpl::place(c10::DataPtr data, TilingPtr new_tiling) {
  if (auto* block = block_of(data)) {
    block->note = new_tiling;
    block->limits = {};
  }
  set_data_ptr_noswap(std::move(data));
  tiling = std::move(new_tiling);
}

at::Tensor with_spyre_storage(const at::Tensor& tensor) {
  auto* plain = tensor.storage().unsafeGetStorageImpl();
  if (C10_LIKELY(dynamic_cast<SpyreStorageImpl*>(plain) != nullptr)) return tensor;
  auto address = reinterpret_cast<card::Address>(plain->data());
  auto device = tensor.device().index();
  const card::Block* block = address == 0 ? nullptr : get_card(device).memory.find(address);
  TORCH_CHECK(block != nullptr && block->address == address,
              "the tensor's memory is not a spyre allocation");
  auto storage =
      c10::make_intrusive<SpyreStorageImpl>(c10::StorageImpl::use_byte_size_t(), plain->nbytes(),
                                            borrowed(*block), allocator(), /*resizable=*/false);
  storage->tiling = std::static_pointer_cast<const Tiling>(block->note);
  auto result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                         tensor.key_set(), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                      tensor.storage_offset());
  return result;
}

SpyreStorageImpl* spyre_storage(const c10::Storage& storage) {
  auto* impl = dynamic_cast<SpyreStorageImpl*>(storage.unsafeGetStorageImpl());
  TORCH_CHECK(impl != nullptr, "expected a spyre storage, got one on ", storage.device());
  return impl;
}

SpyreStorageImpl* spyre_storage(const at::Tensor& tensor) {
  return spyre_storage(tensor.storage());
}

bool same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

TilingPtr flat_tiling(int64_t elements, c10::ScalarType dtype) {
  if (!is_tileable(dtype)) return nullptr;
  auto format = device_format(dtype);
  return make_tiling(card::make_layout({elements}, format), {elements}, {1}, dtype);
}

TilingPtr default_tiling(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  if (!is_tileable(dtype)) return nullptr;
  if (static_cast<int64_t>(sizes.size()) > kMaxTiledRank || !is_dense(sizes, strides)) {
    int64_t elements = at::detail::computeStorageNbytes(sizes, strides, 1);
    return flat_tiling(elements, dtype);
  }
  card::Dims order(sizes.size());
  for (size_t d = 0; d < order.size(); d++) order[d] = static_cast<int64_t>(d);
  card::Dims size_vector = sizes.vec(), stride_vector = strides.vec();
  auto layout = card::make_layout(size_vector, stride_vector, device_format(dtype), order);
  return make_tiling(std::move(layout), std::move(size_vector), std::move(stride_vector), dtype);
}

TilingPtr explicit_tiling(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                          const card::StickLayout& layout) {
  auto format = checked_device_format(dtype);
  TORCH_CHECK_VALUE(layout.format == format, "a layout with device_dtype ",
                    card::name(layout.format), " cannot hold dtype ", c10::toString(dtype),
                    ", which is ", card::name(format), " on the card");
  auto tiling = make_tiling(layout, sizes.vec(), strides.vec(), dtype);
  card::check_placement(tiling->placement);
  return tiling;
}

c10::intrusive_ptr<SpyreStorageImpl> new_storage(size_t nbytes, TilingPtr tiling,
                                                 c10::DeviceIndex device) {
  auto data = allocate_on(device, device_bytes(nbytes, nbytes == 0 ? nullptr : tiling.get()));
  if (auto* block = block_of(data)) block->note = tiling;
  auto storage =
      c10::make_intrusive<SpyreStorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                            std::move(data), allocator(), /*resizable=*/true);
  storage->tiling = std::move(tiling);
  return storage;
}

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                      c10::DeviceIndex device, TilingPtr tiling) {
  auto meta = c10::scalarTypeToTypeMeta(dtype);
  size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, meta.itemsize());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(new_storage(nbytes, std::move(tiling), device)),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                      c10::DeviceIndex device) {
  return new_tensor(sizes, strides, dtype, device, default_tiling(sizes, strides, dtype));
}

card::CardSide card_side(const SpyreStorageImpl& storage, int64_t untiled_elem_bytes) {
  card::Block* block = storage.block();
  TORCH_INTERNAL_ASSERT(block != nullptr, "an empty spyre storage has no elements to copy");
  auto& memory = get_card(static_cast<c10::DeviceIndex>(block->card)).memory;
  // An alias storage may start inside its block.
  auto address = reinterpret_cast<card::Address>(storage.data());
  return {memory.host(address), storage.tiling ? &storage.tiling->placement : nullptr,
          untiled_elem_bytes};
}

at::Tensor read_image(SpyreStorageImpl& storage) {
  NoGil no_gil;
  std::lock_guard lock(storage.mutex);
  auto bytes = static_cast<int64_t>(storage.nbytes());
  auto image = at::zeros({bytes}, at::TensorOptions(at::kByte));
  if (bytes == 0 || storage.block() == nullptr) return image;
  if (storage.tiling) {
    const auto& placement = storage.tiling->placement;
    read_view(storage, {placement.sizes, placement.strides, 0},
              {image.data_ptr(), host_type(storage.tiling->dtype), placement.strides},
              /*elem_bytes=*/0);
  } else {
    read_view(storage, {{bytes}, {1}, 0}, {image.data_ptr(), card::HostType::RAW, {1}},
              /*elem_bytes=*/1);
  }
  return image;
}

void write_image(SpyreStorageImpl& storage, const at::Tensor& bytes) {
  TORCH_INTERNAL_ASSERT(bytes.is_cpu() && bytes.is_contiguous() &&
                        bytes.nbytes() == storage.nbytes());
  if (storage.nbytes() == 0) return;
  auto write_untiled = [&] {
    int64_t n = bytes.numel() * bytes.element_size();
    bool fits = write_view(storage, {{n}, {1}, 0}, {bytes.data_ptr(), card::HostType::RAW, {1}},
                           /*elem_bytes=*/1);
    TORCH_INTERNAL_ASSERT(fits);
  };
  if (!storage.tiling) return write_untiled();
  TilingPtr tiling = storage.tiling;
  const auto& placement = tiling->placement;
  bool fits =
      write_view(storage, {placement.sizes, placement.strides, 0},
                 {bytes.data_ptr(), host_type(tiling->dtype), placement.strides}, /*elem_bytes=*/0);
  if (fits) return;
  check_may_carry(storage);
  storage.place(allocate_on(storage.device().index(), storage.nbytes()), nullptr);
  write_untiled();
}

void carry(SpyreStorageImpl& storage) {
  check_may_carry(storage);
  reshape_storage(storage, storage.nbytes(), nullptr);
}

void reshape_storage(SpyreStorageImpl& storage, size_t nbytes, TilingPtr tiling) {
  NoGil no_gil;
  std::lock_guard lock(storage.mutex);
  auto old = read_image(storage);
  auto image = old;
  if (static_cast<int64_t>(nbytes) != old.numel()) {
    image = at::zeros({static_cast<int64_t>(nbytes)}, at::TensorOptions(at::kByte));
    int64_t kept = std::min<int64_t>(nbytes, old.numel());
    if (kept > 0) std::memcpy(image.data_ptr(), old.data_ptr(), kept);
  }
  size_t bytes = device_bytes(nbytes, nbytes == 0 ? nullptr : tiling.get());
  storage.place(allocate_on(storage.device().index(), bytes), std::move(tiling));
  storage.set_nbytes(nbytes);
  if (old.numel() > 0) write_image(storage, image);
}

}  // namespace spyre
