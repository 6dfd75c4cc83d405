// Lets threads sleep until a 32-bit word changes: by Linux's system call futex, or by std::atomic's wait elsewhere.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace treadle {

/// Sleeps until another thread calls futex_wake(). Returns at once if `word` differs from `expected`. May also return without reason, so
/// callers must check in a loop.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) noexcept {
#if defined(__linux__)
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
#else
  word.wait(expected);
#endif
}

inline void futex_wake(std::atomic<uint32_t>& word, int count = INT_MAX) noexcept {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
#else
  if (count == 1)
    word.notify_one();
  else
    word.notify_all();
#endif
}

/// Sleeps on a word in memory that processes share, until it is woken or the timeout has passed.
inline void futex_wait_shared(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) noexcept {
  timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected, &timeout, nullptr, 0);
#else
  if (word.load() == expected) nanosleep(&timeout, nullptr);
#endif
}

inline void futex_wake_shared(std::atomic<uint32_t>& word, int count = INT_MAX) noexcept {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, count, nullptr, nullptr, 0);
#else
  (void)word, (void)count;  // not needed, because waits have timeouts
#endif
}

/// Hints to the core that this is a spin loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

}  // namespace treadle
