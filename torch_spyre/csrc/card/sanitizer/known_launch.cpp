#include "sanitizer/known_launch.h"

#include <algorithm>
#include <map>

#include "sanitizer/sanitizer.h"

namespace spyre::card {
namespace {

constexpr size_t kMostLaunches = 8;  // of a program

bool is_written(const StickState& state) { return state.run != NOBODY && state.run != FREED; }

}  // namespace

// ---- What is known ------------------------------------------------------------------------------

bool KnownLaunch::meets(std::span<const int64_t> own_kind,
                        std::span<const ShadowRange> arguments) const {
  if (!std::equal(own_kind.begin(), own_kind.end(), kind.begin(), kind.end())) return false;
  for (const Found& run : found) {
    const ShadowRange& range = arguments[run.argument];
    const StickState* state = &range.shadow->state(range.low / kStickBytes + run.first);
    for (const StickState* end = state + run.count; state < end; state++) {
      if (state->data != run.data || is_written(*state) != run.is_written) return false;
    }
  }
  return true;
}

void KnownLaunch::leave(Sanitizer& sanitizer, std::span<const ShadowRange> arguments,
                        uint64_t launch) const {
  std::vector<uint32_t> runs;
  for (const std::string& writer : writers) runs.push_back(sanitizer.new_run(writer));
  for (const Begun& part : begun) {
    for (int core = 0; core < sanitizer.scratchpads(); core++) {
      sanitizer.scratchpad(core).fill(part.offset, part.bytes, begun_stick(launch, part.buffer));
    }
  }
  for (const Left& run : left) {
    const bool in_lx = run.argument < 0;
    Shadow& shadow = in_lx ? sanitizer.scratchpad(run.core) : sanitizer.device();
    const int64_t start = in_lx ? 0 : arguments[run.argument].low;
    StickState state = run.state;
    state.run = runs[state.run];
    shadow.fill(start + run.first * kStickBytes, run.count * kStickBytes, state);
  }
}

std::shared_ptr<const KnownLaunch> KnownLaunches::find(
    std::span<const int64_t> kind, std::span<const ShadowRange> arguments) const {
  for (const auto& launch : launches_) {
    if (launch->meets(kind, arguments)) return launch;
  }
  return nullptr;
}

void KnownLaunches::add(std::shared_ptr<const KnownLaunch> launch) {
  if (launches_.size() < kMostLaunches) {
    launches_.push_back(std::move(launch));
    return;
  }
  launches_[next_] = std::move(launch);
  next_ = (next_ + 1) % kMostLaunches;
}

// ---- Getting to know it -------------------------------------------------------------------------

LaunchRecorder::LaunchRecorder(std::vector<int64_t> kind, std::span<const ShadowRange> arguments,
                               int pool)
    : is_on_(true), kind_(std::move(kind)) {
  for (size_t i = 0; i < arguments.size(); i++) {
    const ShadowRange& range = arguments[i];
    Argument& own = arguments_.emplace_back(Argument{range, {}, {}});
    // Parts of one tensor as different arguments: what is written as the one is found as the other.
    for (const ShadowRange& other : arguments) {
      const bool meets = range.low < other.high && other.low < range.high;
      if (meets && range.low != other.low) is_on_ = false;
    }
    if (range.low % kStickBytes != 0) is_on_ = false;
    if (!is_on_) return;
    if (static_cast<int>(i) == pool || range.high == range.low) continue;
    own.needed.resize((range.high - range.low) / kChunkBytes + 1);
    const int64_t sticks = (range.high - range.low) / kStickBytes;
    const StickState* states = &range.shadow->state(range.low / kStickBytes);
    for (int64_t n = 0; n < sticks; n++) {
      const StickState& state = states[n];
      const bool written = is_written(state);
      if (own.found.empty() || own.found.back().is_written != written ||
          own.found.back().data != state.data) {
        own.found.push_back({static_cast<int>(i), n, 0, state.data, written});
      }
      own.found.back().count++;
    }
  }
}

std::shared_ptr<const KnownLaunch> LaunchRecorder::finish(
    Sanitizer& sanitizer, uint32_t first_run, std::span<const ShadowRange> written,
    std::span<const ShadowRange> written_lx) const {
  if (!is_on_) return nullptr;
  auto launch = std::make_shared<KnownLaunch>();
  launch->kind = kind_;
  launch->begun = begun_;
  constexpr int64_t kChunk = kChunkBytes / kStickBytes;
  for (const Argument& own : arguments_) {
    for (const KnownLaunch::Found& run : own.found) {
      for (int64_t n = run.first; n < run.first + run.count;) {
        const int64_t end = std::min(run.first + run.count, (n / kChunk + 1) * kChunk);
        if (own.needed[n / kChunk]) {
          KnownLaunch::Found* last = launch->found.empty() ? nullptr : &launch->found.back();
          if (last != nullptr && n > run.first && last->first + last->count == n) {
            last->count = end - last->first;
          } else {
            launch->found.push_back({run.argument, n, end - n, run.data, run.is_written});
          }
        }
        n = end;
      }
    }
  }
  std::map<uint32_t, uint32_t> numbers;  // of runs, among the writers
  const auto note = [&](const ShadowRange& range, int64_t start, int argument, int core) {
    if (range.shadow == nullptr) return;
    int64_t expected = -1;
    for (int64_t at = range.low; at < range.high; at += kStickBytes) {
      StickState state = range.shadow->state(at / kStickBytes);
      if (state.run < first_run) continue;
      const auto [entry, is_new] =
          numbers.try_emplace(state.run, static_cast<uint32_t>(launch->writers.size()));
      if (is_new) launch->writers.push_back(sanitizer.name_of_run(state.run));
      state.run = entry->second;
      const int64_t n = (at - start) / kStickBytes;
      if (n == expected && launch->left.back().state == state) {
        launch->left.back().count++;
      } else {
        launch->left.push_back({argument, core, n, 1, state});
      }
      expected = n + 1;
    }
  };
  for (size_t i = 0; i < written.size(); i++) {
    // What is left in the pool is dead.
    if (arguments_[i].needed.empty()) continue;
    note(written[i], arguments_[i].range.low, static_cast<int>(i), -1);
  }
  for (size_t core = 0; core < written_lx.size(); core++) {
    note(written_lx[core], 0, -1, static_cast<int>(core));
  }
  return launch;
}

}  // namespace spyre::card
