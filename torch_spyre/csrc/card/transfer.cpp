#include "transfer.h"

#include <atomic>

namespace spyre::card {
namespace {

// From this size on the destination would not stay in the caches anyway; writing past them saves
// reading it first.
constexpr int64_t kStreamBytes = 4 << 20;

Stores stores_for(int64_t bytes) {
  return bytes >= kStreamBytes ? Stores::STREAM : Stores::CACHED;
}

}  // namespace

MappedCard map_card(const CardSide& card) {
  if (card.placement == nullptr) return {untiled_address_map(), card.base, card.elem_bytes};
  return {make_address_map(*card.placement), card.base,
          bytes_per_elem(card.placement->layout.format)};
}

bool write_card(const MappedCard& card, const View& view, const Strided& from, ThreadPool* pool) {
  const CopyPlan plan =
      make_copy_plan(card.map, view, from.strides, Replicas::FILL_ALL, card.elem_bytes);
  const BoxCopy copy = {convert_table(best_simd()), from.conversion, plan, card.base, from.data,
                        card.elem_bytes, from.elem_bytes,
                        stores_for(plan.elements * card.elem_bytes)};
  std::atomic<bool> fits{true};
  share_units(plan.units(), plan.elements, pool, [&](int64_t first, int64_t last) {
    bool these_fit = true;
    BoxWalker(plan, card.map).walk(first, last, [&](const Box& box) {
      these_fit &= copy.to_card(box);
    });
    if (!these_fit) fits.store(false, std::memory_order_relaxed);
    if (copy.stores == Stores::STREAM) copy.table.fence();
  });
  return fits;
}

void read_card(const MappedCard& card, const View& view, const Strided& to, ThreadPool* pool) {
  const CopyPlan plan =
      make_copy_plan(card.map, view, to.strides, Replicas::FIRST_ONLY, card.elem_bytes);
  const BoxCopy copy = {convert_table(best_simd()), to.conversion, plan, card.base, to.data,
                        card.elem_bytes, to.elem_bytes,
                        stores_for(plan.elements * to.elem_bytes)};
  share_units(plan.units(), plan.elements, pool, [&](int64_t first, int64_t last) {
    BoxWalker(plan, card.map).walk(first, last, [&](const Box& box) { copy.from_card(box); });
    if (copy.stores == Stores::STREAM) copy.table.fence();
  });
}

}  // namespace spyre::card
