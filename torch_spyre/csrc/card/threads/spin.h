// Waiting without giving the processor away.
//
// Example: if (!spin_until([&] { return ready.load(); }, 50us)) sleep();
#pragma once

#include <chrono>

namespace spyre::card {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as `ready` is, false when the time is over.
template <typename Ready>
bool spin_until(Ready&& ready, std::chrono::microseconds time) {
  if (ready()) return true;
  const auto end = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < 16; i++) {
      relax();
      if (ready()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace spyre::card
