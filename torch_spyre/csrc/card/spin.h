// Waiting without sleeping.
//
// Example: if (!spin_until([&] { return ready.load(); }, 50us)) sleep();
#pragma once

#include <chrono>
#include <thread>

namespace spyre::card {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// After so long, other threads that want the processor go first.
constexpr std::chrono::microseconds kPoliteAfter{50};

// True as soon as `ready` is, false when the time is over.
template <typename Ready>
bool spin_until(Ready&& ready, std::chrono::microseconds time) {
  if (ready()) return true;
  const auto begin = std::chrono::steady_clock::now();
  for (auto now = begin; now - begin < time; now = std::chrono::steady_clock::now()) {
    if (now - begin > kPoliteAfter) std::this_thread::yield();
    for (int i = 0; i < 16; i++) {
      relax();
      if (ready()) return true;
    }
  }
  return false;
}

}  // namespace spyre::card
