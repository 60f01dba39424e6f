#include "memory/transfer.h"

#include <atomic>

namespace spyre::card {
namespace {

// From this size on the destination would not stay in the caches anyway; writing past them saves
// reading it first.
constexpr int64_t kStreamBytes = 4 << 20;

}  // namespace

Stores stores_for(int64_t bytes) { return bytes >= kStreamBytes ? Stores::STREAM : Stores::CACHED; }

int64_t num_elements(const View& view) {
  int64_t count = 1;
  for (int64_t size : view.sizes) count *= size;
  return count;
}

MappedCard map_card(const CardSide& card) {
  if (card.placement == nullptr) {
    return {untiled_address_map(), card.base, card.elem_bytes, nullptr};
  }
  return {make_address_map(*card.placement), card.base,
          bytes_per_elem(card.placement->layout.format), card.placement};
}

bool write_card(const MappedCard& card, const View& view, const Strided& from, Stores stores,
                ThreadPool* pool) {
  const CopyPlan plan =
      make_copy_plan(card.map, view, from.strides, Replicas::FILL_ALL, card.elem_bytes);
  const BoxCopy copy = {convert_table(best_simd()),
                        from.conversion,
                        plan,
                        card.base,
                        from.data,
                        card.elem_bytes,
                        from.elem_bytes,
                        stores};
  std::atomic<bool> fits{true};
  share_units(plan.units(), plan.elements, pool, [&](int64_t first, int64_t last) {
    bool these_fit = true;
    BoxWalker(plan, card.map).walk(first, last, [&](const Box& box) {
      these_fit &= copy.to_card(box);
    });
    if (!these_fit) fits.store(false, std::memory_order_relaxed);
    if (stores == Stores::STREAM) copy.table.fence();
  });
  return fits;
}

void read_card(const MappedCard& card, const View& view, const Strided& to, Stores stores,
               ThreadPool* pool) {
  const CopyPlan plan =
      make_copy_plan(card.map, view, to.strides, Replicas::FIRST_ONLY, card.elem_bytes);
  const BoxCopy copy = {convert_table(best_simd()),
                        to.conversion,
                        plan,
                        card.base,
                        to.data,
                        card.elem_bytes,
                        to.elem_bytes,
                        stores};
  share_units(plan.units(), plan.elements, pool, [&](int64_t first, int64_t last) {
    BoxWalker(plan, card.map).walk(first, last, [&](const Box& box) { copy.from_card(box); });
    if (stores == Stores::STREAM) copy.table.fence();
  });
}

}  // namespace spyre::card
