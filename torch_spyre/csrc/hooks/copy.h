// Copies between host tensors and spyre tensors and between spyre tensors (aten::_copy_from).
#pragma once

#include <ATen/core/Tensor.h>

#include "hooks/storage.h"

namespace spyre {

// dst <- src, broadcasting; at least one of them on spyre. Returns when done unless non_blocking
// and the host side is pinned.
void copy_tensor(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// A new host tensor with the values of a spyre tensor; dense strides in the same order.
at::Tensor to_host(const at::Tensor& tensor);
// A new spyre tensor with the values and (when dense) strides of a host tensor.
at::Tensor to_spyre(const at::Tensor& tensor, c10::DeviceIndex device);

// Blocking transfers of a view of a storage on the current stream of its card.
// `elem_bytes` is the element size of an untiled storage. write_view is false when 64-bit integers
// did not fit the card's 32 bits.
void read_view(SpyreStorageImpl& storage, const card::View& view, const card::HostSide& host,
               int64_t elem_bytes);
[[nodiscard]] bool write_view(SpyreStorageImpl& storage, const card::View& view,
                              const card::HostSide& host, int64_t elem_bytes);

// The documented warning about int64, once per process.
void warn_downcast(bool values_do_not_fit);
bool get_downcast_warning();
void set_downcast_warning(bool enabled);

}  // namespace spyre
