#include "program/work.h"

namespace spyre::card {
namespace {

constexpr int64_t kMaxPlaces = int64_t{1} << 50;
constexpr int64_t kPartialSumBytes = 4;

int64_t product(int64_t a, int64_t b, const WordReader& reader) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) reader.fail("it moves more bytes than there are");
  return result;
}

}  // namespace

Totals parse_work(WordReader& reader, const StepHead& head) {
  Totals totals;
  totals.device_us = head.device_us;
  reader.next(0, INT64_MAX, "its cycles");
  reader.next(0, INT64_MAX, "its multiply-adds");
  reader.next(0, INT64_MAX, "its rows");
  const int64_t hops = reader.next(0, 1 << 10, "the hops of partial sums");
  const int64_t partial = reader.next(0, kMaxPlaces, "the number of partial sums");
  totals.ring = product(product(hops, partial, reader), kPartialSumBytes, reader);
  totals.ring += reader.next(0, kMaxPlaces, "the bytes on the ring");
  reader.next(0, kMaxPlaces, "the bytes of the busiest link");
  const int64_t flows = reader.next(0, 64, "the number of operands");
  for (int64_t i = 0; i < flows; i++) {
    const bool writes = reader.next(0, 1, "whether an operand is written") != 0;
    const bool in_lx = reader.next(0, 1, "whether an operand is in LX") != 0;
    const int64_t unit = reader.next(1, 1 << 20, "the bytes of a place");
    const int64_t axes = reader.next(0, 32, "the number of dimensions");
    int64_t of_core = unit, of_all = unit;
    for (int64_t axis = 0; axis < axes; axis++) {
      const int64_t places = reader.next(0, kMaxPlaces, "the places of a core");
      reader.next(1, 1 << 10, "the number of slices");
      const int64_t total = reader.next(0, kMaxPlaces, "the places of all cores");
      reader.next();  // the stride
      of_core = product(of_core, places, reader);
      of_all = product(of_all, total, reader);
    }
    // What several cores read of device memory moves once; a scratchpad is one core's own.
    if (in_lx) {
      totals.lx += product(of_core, head.cores, reader);
    } else {
      (writes ? totals.memory_written : totals.memory_read) += of_all;
    }
  }
  return totals;
}

}  // namespace spyre::card
