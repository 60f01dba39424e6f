#include "memory/dma.h"

#include <atomic>
#include <stdexcept>
#include <string>

#include "memory/transfer.h"

namespace spyre::card {
namespace {

std::atomic<CopyObserver*> observer_of_copies{nullptr};

void check_ranks(const View& view, const Dims& strides) {
  if (view.sizes.size() != view.strides.size() || view.sizes.size() != strides.size()) {
    throw std::invalid_argument("a copy needs one size and two strides for each dimension, got " +
                                std::to_string(view.sizes.size()) + " sizes, " +
                                std::to_string(view.strides.size()) + " and " +
                                std::to_string(strides.size()) + " strides");
  }
}

Conversion conversion_for(const CardSide& card, HostType type, Numerics numerics) {
  if (card.placement != nullptr) {
    const DataFormat format = card.placement->layout.format;
    if (const auto conversion = find_conversion(type, format, numerics)) return *conversion;
    throw std::invalid_argument(std::string("no conversion between host type ") + name(type) +
                                " and device format " + name(format));
  }
  const Conversion copy = copy_of(card.elem_bytes);
  if (type != HostType::RAW && bytes_of(type) != card.elem_bytes) {
    throw std::invalid_argument(std::string("no conversion between host type ") + name(type) +
                                " and untiled elements of " + std::to_string(card.elem_bytes) +
                                " bytes: they are copied as they are");
  }
  return copy;
}

Strided strided_host(const HostSide& host, int64_t card_bytes, Conversion conversion) {
  const int64_t bytes = host.type == HostType::RAW ? card_bytes : bytes_of(host.type);
  return {static_cast<std::byte*>(host.data), host.strides, bytes, conversion};
}

}  // namespace

void set_copy_observer(CopyObserver* observer) { observer_of_copies.store(observer); }
CopyObserver* copy_observer() { return observer_of_copies.load(std::memory_order_acquire); }

bool has_conversion(HostType type, DataFormat format) {
  return find_conversion(type, format, Numerics::DLFLOAT16).has_value();
}

bool copy_to_card(const CardSide& card, const View& view, const HostSide& host, Numerics numerics,
                  ThreadPool& pool) {
  const Conversion conversion = conversion_for(card, host.type, numerics);
  check_ranks(view, host.strides);
  const int64_t elements = num_elements(view);
  if (elements == 0) return true;
  const MappedCard mapped = map_card(card);
  check_view(mapped.map, view);
  const Strided from = strided_host(host, mapped.elem_bytes, conversion);
  if (CopyObserver* observer = copy_observer()) observer->host_writes(card, view);
  return write_card(mapped, view, from, stores_for(elements * mapped.elem_bytes), &pool);
}

void copy_from_card(const CardSide& card, const View& view, const HostSide& host, Numerics numerics,
                    ThreadPool& pool) {
  const Conversion conversion = conversion_for(card, host.type, numerics);
  check_ranks(view, host.strides);
  const int64_t elements = num_elements(view);
  if (elements == 0) return;
  const MappedCard mapped = map_card(card);
  check_view(mapped.map, view);
  const Strided to = strided_host(host, mapped.elem_bytes, conversion);
  if (CopyObserver* observer = copy_observer()) observer->host_reads(card, view);
  read_card(mapped, view, to, stores_for(elements * to.elem_bytes), &pool);
}

}  // namespace spyre::card
