// Copies between the host and the card, and on the card, as the sanitizer sees them.
#include <algorithm>

#include "memory/transfer.h"
#include "sanitizer/sanitizer.h"
#include "sanitizer/shadow_walk.h"

namespace spyre::card {
namespace {

// A view of a storage of a card that is checked.
struct Checked {
  Sanitizer* sanitizer;
  int64_t base;  // of the storage in the shadow
  MappedCard mapped;

  Checked(const CardSide& card)
      : sanitizer(Sanitizer::find(card.base)), base(0), mapped(map_card(card)) {
    if (sanitizer == nullptr) return;
    base = card.base - sanitizer->memory().host(sanitizer->address_of(0));
  }

  // Calls visit(number of the element, state of its stick, bits of its bytes).
  template <class Visit>
  void for_each(const View& view, Replicas replicas, Visit&& visit) {
    const int64_t bytes = mapped.elem_bytes;
    for_each_element(mapped.map, view, bytes, replicas, [&](int64_t number, int64_t device) {
      const int64_t at = base + device * bytes;
      visit(number, sanitizer->device().state(at / kStickBytes),
            Bits::range(static_cast<int>(at % kStickBytes), static_cast<int>(bytes)));
    });
  }
};

// Calls visit(state of a stick, bits of it) for the sticks that a run of elements touches.
template <class Visit>
void for_each_stick(Checked& card, const ElementRun& run, Visit&& visit) {
  const int64_t bytes = card.mapped.elem_bytes;
  const auto range = [&](int64_t at, int64_t count) {
    while (count > 0) {
      const int64_t within = at % kStickBytes, some = std::min(count, kStickBytes - within);
      visit(card.sanitizer->device().state(at / kStickBytes),
            Bits::range(static_cast<int>(within), static_cast<int>(some)));
      at += some;
      count -= some;
    }
  };
  if (run.device_step == 1) return range(card.base + run.device * bytes, run.count * bytes);
  for (int64_t i = 0; i < run.count; i++) {
    range(card.base + (run.device + i * run.device_step) * bytes, bytes);
  }
}

// Whether all elements hold data: the usual case, in which it is not asked which of them do.
bool all_data(Checked& card, const View& view) {
  bool all = true;
  for_each_run(card.mapped.map, view, card.mapped.elem_bytes, Replicas::FIRST_ONLY,
               numbering(view.sizes), [&](const ElementRun& run) {
                 if (!all) return;
                 for_each_stick(card, run, [&](const StickState& state, const Bits& bytes) {
                   all = all && state.data.covers(bytes);
                 });
               });
  return all;
}

void write_all(Checked& card, const View& view, const char* who) {
  const uint32_t number = card.sanitizer->new_run(who);
  for_each_run(card.mapped.map, view, card.mapped.elem_bytes, Replicas::FILL_ALL,
               numbering(view.sizes), [&](const ElementRun& run) {
                 for_each_stick(card, run, [&](StickState& state, const Bits& bytes) {
                   state.data = state.data | bytes;
                   state.run = number;
                   state.core = kNoCore;
                 });
               });
}

}  // namespace

void CopyChecker::host_writes(const CardSide& side, const View& view) {
  Checked card(side);
  if (card.sanitizer == nullptr || num_elements(view) == 0) return;
  write_all(card, view, "a copy of the host");
}

void CopyChecker::host_reads(const CardSide& side, const View& view) {
  Checked card(side);
  if (card.sanitizer == nullptr || num_elements(view) == 0 || all_data(card, view)) return;
  int64_t there = 0, missing = 0, written = 0, first = -1;
  const StickState* where = nullptr;
  card.for_each(view, Replicas::FIRST_ONLY,
                [&](int64_t number, const StickState& state, const Bits& bytes) {
                  if (state.data.covers(bytes)) {
                    there++;
                    return;
                  }
                  missing++;
                  written += state.run != NOBODY;
                  if (first < 0 || number < first) {
                    first = number;
                    where = &state;
                  }
                });
  // A tensor that was never written at all holds what it holds: nothing counts on it.
  if (missing == 0 || there + written == 0) return;
  Finding finding;
  finding.what = "reads elements that nobody wrote, or that were made of padding";
  finding.kernel = "the host";
  finding.operation = "a copy to the host";
  const size_t stick = where - &card.sanitizer->device().state(0);
  const Address address = card.sanitizer->address_of(stick * kStickBytes);
  finding.address = hex_address(address) + ", element " + std::to_string(first) + "; " +
                    std::to_string(missing) + " of " + std::to_string(there + missing);
  const Block* block = card.sanitizer->memory().find(address);
  finding.tensor = block ? "the one at " + hex_address(block->address) : "unknown";
  finding.last_writer = card.sanitizer->describe_run(where->run, where->core);
  raise_findings({finding});
}

void CopyChecker::card_copies(const CardSide& from, const View& from_view, const CardSide& to,
                              const View& to_view) {
  Checked source(from), target(to);
  const int64_t elements = num_elements(from_view);
  if (target.sanitizer == nullptr || elements == 0) return;
  constexpr const char* kWho = "a copy from another tensor";
  if (source.sanitizer == nullptr || all_data(source, from_view)) {
    write_all(target, to_view, kWho);
    return;
  }
  std::vector<bool> has_data(elements);
  source.for_each(from_view, Replicas::FIRST_ONLY,
                  [&](int64_t number, const StickState& state, const Bits& bytes) {
                    has_data[number] = state.data.covers(bytes);
                  });
  const uint32_t run = target.sanitizer->new_run(kWho);
  target.for_each(to_view, Replicas::FILL_ALL,
                  [&](int64_t number, StickState& state, const Bits& bytes) {
                    state.run = run;
                    state.core = kNoCore;
                    if (has_data[number]) {
                      state.data = state.data | bytes;
                    } else {
                      state.data = {state.data.low & ~bytes.low, state.data.high & ~bytes.high};
                    }
                  });
}

}  // namespace spyre::card
