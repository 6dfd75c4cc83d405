// Log messages go to one sink per process; by default, warnings and worse go to standard error.
//   TREADLE_LOG(warning, "node {} declares {}, inferred {}", name, declared, inferred);
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <string_view>

namespace treadle {

enum class LogLevel : uint8_t { verbose = 0, info = 1, warning = 2, error = 3, fatal = 4 };
std::string_view log_level_name(LogLevel level) noexcept;

/// Called for one message at a time, from any thread. It must not log. `file` is relative to the source folder.
using LogSink = std::function<void(LogLevel level, std::string_view message, std::string_view file, int line)>;

/// An empty sink restores the default.
void set_log_sink(LogSink sink);
/// Messages below this level are not formatted. Default: `warning`.
void set_log_level(LogLevel level) noexcept;

namespace detail {
extern std::atomic<LogLevel> lowest_log_level;
void log(LogLevel level, const char* file, int line, fmt::string_view format, fmt::format_args arguments) noexcept;

/// Formats a message; the compiler checks the format string.
template <typename... Args>
void log_checked(LogLevel level, const char* file, int line, fmt::format_string<Args...> format, Args&&... args) noexcept {
  log(level, file, line, format, fmt::make_format_args(args...));
}
}  // namespace detail

inline bool log_enabled(LogLevel level) noexcept { return level >= detail::lowest_log_level.load(std::memory_order_relaxed); }

}  // namespace treadle

/// Arguments are evaluated only if the level is enabled. Never throws.
#define TREADLE_LOG(level, ...)                                                                    \
  do {                                                                                             \
    if (::treadle::log_enabled(::treadle::LogLevel::level))                                        \
      ::treadle::detail::log_checked(::treadle::LogLevel::level, __FILE__, __LINE__, __VA_ARGS__); \
  } while (false)
