#include "memory/mixed_radix.h"

#include <algorithm>
#include <numeric>

namespace spyre::card {
namespace {

// What the members leave below `boundary` once whole multiples of it are taken out. Exact, or a
// superset with the same spacing when the remainders are not a progression themselves.
Progression remainders(const Progression& members, int64_t boundary) {
  if (members.last < boundary) return members;
  if (boundary == 1) return {0, 1, 0};
  if (members.first == members.last) {
    const int64_t rest = members.first % boundary;
    return {rest, 1, rest};
  }
  const int64_t step = std::gcd(members.step, boundary);
  const int64_t first = members.first % step;
  return {first, step, first + (boundary - 1 - first) / step * step};
}

enum class Verdict { INSIDE, UNKNOWN };

Verdict judge_by_bounds(Progressions terms, const Levels& levels) {
  int64_t rest = 0;
  for (const Progression& term : terms) rest += term.last;
  for (int k = levels.size() - 1; k >= 0; --k) {
    int64_t digit = 0;
    rest = 0;
    for (Progression& term : terms) {
      digit += term.last / levels[k].stride;
      term = remainders(term, levels[k].stride);
      rest += term.last;
    }
    if (digit >= levels[k].size || rest >= levels[k].stride) return Verdict::UNKNOWN;
  }
  return rest == 0 ? Verdict::INSIDE : Verdict::UNKNOWN;
}

bool is_inside(int64_t element, const Levels& levels) {
  for (int k = levels.size() - 1; k >= 0; --k) {
    if (element / levels[k].stride >= levels[k].size) return false;
    element %= levels[k].stride;
  }
  return element == 0;
}

bool visit_all(std::span<const Progression> terms, int64_t sum, const Levels& levels) {
  if (terms.empty()) return is_inside(sum, levels);
  const Progression& term = terms.front();
  for (int64_t value = term.first; value <= term.last; value += term.step) {
    if (!visit_all(terms.subspan(1), sum + value, levels)) return false;
  }
  return true;
}

}  // namespace

void sort_by_stride(Levels& levels) {
  // Insertion: a handful of levels, mostly in order.
  for (int i = 1; i < levels.size(); ++i) {
    for (int j = i; j > 0 && levels[j].stride < levels[j - 1].stride; --j) {
      std::swap(levels[j], levels[j - 1]);
    }
  }
}

void join_levels(Levels& levels) {
  int kept = 0;
  for (int k = 1; k < levels.size(); ++k) {
    Level& low = levels[kept];
    const Level& high = levels[k];
    if (high.stride == low.stride * low.size && high.device == low.device * low.size) {
      low.size *= high.size;
    } else {
      levels[++kept] = high;
    }
  }
  while (levels.size() > kept + 1) levels.erase(levels.size() - 1);
}

bool carry_free(const Progressions& terms, const Levels& levels) {
  Progressions left = terms;
  for (int k = levels.size() - 1; k >= 1; --k) {
    int64_t rest = 0;
    for (Progression& term : left) {
      term = remainders(term, levels[k].stride);
      rest += term.last;
    }
    if (rest >= levels[k].stride) return false;
  }
  return true;
}

bool all_inside(const Progressions& terms, const Levels& levels) {
  if (judge_by_bounds(terms, levels) == Verdict::INSIDE) return true;
  // One level has no remainders to guess: its bound is exact.
  if (levels.size() == 1 && levels[0].stride == 1) return false;
  return visit_all({terms.begin(), terms.end()}, 0, levels);
}

}  // namespace spyre::card
