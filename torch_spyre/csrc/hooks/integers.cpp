#include "hooks/integers.h"

#include <algorithm>
#include <limits>

namespace spyre {
namespace {

constexpr int64_t kSmall = 1 << 24;

bool holds_integers(const SpyreStorageImpl& storage) {
  return storage.tiling && storage.tiling->dtype == at::kLong && storage.block() != nullptr;
}

card::Limits joined(const card::Limits& a, const card::Limits& b) {
  if (!a.known() || !b.known()) return {};
  return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

bool covers(const card::View& view, const SpyreStorageImpl& storage) {
  int64_t written = 1, all = 1;
  for (auto n : view.sizes) written *= n;
  for (auto n : storage.tiling->placement.sizes) all *= n;
  return written >= all;
}

void note(const SpyreStorageImpl& storage, const card::View& view, const card::Limits& limits) {
  auto& known = storage.block()->limits;
  known = covers(view, storage) ? limits : joined(known, limits);
}

void measure(const int64_t* data, const card::Dims& sizes, const card::Dims& strides, size_t dim,
             card::Limits& limits) {
  if (dim == sizes.size()) {
    limits.low = std::min(limits.low, *data);
    limits.high = std::max(limits.high, *data);
    return;
  }
  if (dim + 1 == sizes.size()) {
    for (int64_t i = 0; i < sizes[dim]; i++) {
      limits.low = std::min(limits.low, data[i * strides[dim]]);
      limits.high = std::max(limits.high, data[i * strides[dim]]);
    }
    return;
  }
  for (int64_t i = 0; i < sizes[dim]; i++) {
    measure(data + i * strides[dim], sizes, strides, dim + 1, limits);
  }
}

card::Limits nothing_yet() {
  return {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
}

// A single 0 or 1 is rather a counter that begins than a mask.
IntegerClass class_of(const card::Limits& limits, bool several) {
  if (several && limits.low >= 0 && limits.high <= 1) return TRUTH;
  if (limits.low > -kSmall && limits.high < kSmall) return SMALL;
  const bool fits = limits.low >= std::numeric_limits<int32_t>::min() &&
                    limits.high <= std::numeric_limits<int32_t>::max();
  return fits ? FITTING : CARRIED;
}

}  // namespace

void note_written(const SpyreStorageImpl& storage, const card::View& view,
                  const card::HostSide& host) {
  if (!holds_integers(storage)) return;
  card::Limits found;
  if (host.type == card::HostType::I64) {
    found = nothing_yet();
    measure(static_cast<const int64_t*>(host.data), view.sizes, host.strides, 0, found);
  }
  note(storage, view, found);
}

void note_copied(const SpyreStorageImpl& from, const SpyreStorageImpl& to, const card::View& view) {
  if (holds_integers(to)) {
    note(to, view, holds_integers(from) ? from.block()->limits : card::Limits{});
  }
}

void forget_limits(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kLong || !tensor.has_storage()) return;
  auto* storage = dynamic_cast<SpyreStorageImpl*>(tensor.storage().unsafeGetStorageImpl());
  if (storage != nullptr && storage->block() != nullptr) storage->block()->limits = {};
}

IntegerClass integer_class(const at::Tensor& given) {
  if (given.is_cpu()) {
    auto found = nothing_yet();
    if (given.numel() == 0) return SMALL;
    measure(given.const_data_ptr<int64_t>(), given.sizes().vec(), given.strides().vec(), 0, found);
    return class_of(found, given.numel() > 1);
  }
  const at::Tensor tensor = with_spyre_storage(given);
  auto& storage = *spyre_storage(tensor);
  if (storage.block() == nullptr || storage.nbytes() == 0) return SMALL;  // no numbers at all
  if (!holds_integers(storage)) return CARRIED;
  auto& limits = storage.block()->limits;
  if (!limits.known()) {
    NoGil no_gil;
    std::lock_guard lock(storage.mutex);
    const auto image = read_image(storage);
    const auto count = static_cast<int64_t>(storage.nbytes() / sizeof(int64_t));
    auto found = nothing_yet();
    measure(static_cast<const int64_t*>(image.const_data_ptr()), {count}, {1}, 0, found);
    limits = found;
  }
  return class_of(limits, storage.nbytes() > sizeof(int64_t));
}

}  // namespace spyre
