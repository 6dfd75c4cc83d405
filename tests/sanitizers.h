// Tells which sanitizer a test runs under.
#pragma once

namespace treadle::test {

#if defined(__has_feature)
#define TREADLE_HAS_FEATURE(name) __has_feature(name)
#else
#define TREADLE_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || TREADLE_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || TREADLE_HAS_FEATURE(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

/// True if the memory that a test measures includes memory of a sanitizer.
inline constexpr bool kSanitized = kThreadSanitizer || kAddressSanitizer;

#undef TREADLE_HAS_FEATURE

}  // namespace treadle::test
