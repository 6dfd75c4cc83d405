// Makes the thread's floating-point instructions treat denormal numbers as zero.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace treadle {

/// While an object lives, this thread's vector instructions treat denormal operands and results as zero. Other architectures: no effect.
class DenormalsAsZero {
 public:
#if defined(__x86_64__)
  DenormalsAsZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kBits); }
  ~DenormalsAsZero() { _mm_setcsr(before_); }
  static bool is_on() { return (_mm_getcsr() & kBits) == kBits; }
#elif defined(__aarch64__)
  DenormalsAsZero() : before_(get()) { set(before_ | kBits); }
  ~DenormalsAsZero() { set(before_); }
  static bool is_on() { return (get() & kBits) == kBits; }
#else
  DenormalsAsZero() = default;
  ~DenormalsAsZero() {}
  static bool is_on() { return false; }
#endif
  DenormalsAsZero(const DenormalsAsZero&) = delete;
  DenormalsAsZero& operator=(const DenormalsAsZero&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kBits = 0x8040;  // bits FTZ and DAZ (flush-to-zero, denormals-are-zero) of MXCSR
  unsigned before_;
#elif defined(__aarch64__)
  static constexpr uint64_t kBits = uint64_t{1} << 24;  // bit FZ (flush-to-zero) of FPCR
  static uint64_t get() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
  uint64_t before_;
#endif
};

}  // namespace treadle
