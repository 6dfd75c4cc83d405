// Log messages go to one sink per process; by default, warnings and worse go to standard error.
//   TREADLE_LOG(warning, "node {} declares {}, inferred {}", name, declared, inferred);
#pragma once

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <source_location>
#include <span>
#include <string_view>
#include <variant>

namespace treadle {

enum class LogLevel : uint8_t { verbose = 0, info = 1, warning = 2, error = 3, fatal = 4 };
std::string_view log_level_name(LogLevel level) noexcept;

/// What a message is about.
enum class LogCategory : uint8_t {
  general,
  session,    ///< creation and destruction of sessions, trainers and modules
  run,        ///< begins and ends of runs, and their errors
  program,    ///< programs that are compiled or dropped, and input shapes that a program has not had before
  placement,  ///< the devices that nodes run on, and why a node does not run on the requested device
  fusion,     ///< why optimization passes did not change nodes
  memory,     ///< changed memory limits, and memory that is freed or moved
};
inline constexpr size_t kNumLogCategories = 7;
std::string_view log_category_name(LogCategory category) noexcept;

/// A named value of a message, for programs that read logs.
struct LogField {
  std::string_view name;
  std::variant<int64_t, double, std::string_view> value;
};

struct LogRecord {
  LogLevel level;
  LogCategory category;
  std::string_view text;
  std::span<const LogField> fields;
  std::string_view file;  ///< relative to the source folder
  int line;
};

/// Called for one message at a time, from any thread. It must not log.
using LogSink = std::function<void(const LogRecord& record)>;

/// Sets the sink of log messages. An empty sink restores the default.
void set_log_sink(LogSink sink);
/// Sets the lowest level that is logged. Messages of lower levels are not even formatted. Default: `warning`.
/// @param categories  bit k stands for category k. Other categories log only warnings and worse, as far as `level` permits
void set_log_level(LogLevel level, uint32_t categories = UINT32_MAX) noexcept;

namespace detail {
extern std::array<std::atomic<LogLevel>, kNumLogCategories> lowest_log_levels;
void log(LogLevel level, const char* file, int line, fmt::string_view format, fmt::format_args arguments) noexcept;

/// Formats a message; the compiler checks the format string.
template <typename... Args>
void log_checked(LogLevel level, const char* file, int line, fmt::format_string<Args...> format, Args&&... args) noexcept {
  log(level, file, line, format, fmt::make_format_args(args...));
}
}  // namespace detail

inline bool log_enabled(LogLevel level, LogCategory category = LogCategory::general) noexcept {
  return level >= detail::lowest_log_levels[static_cast<size_t>(category)].load(std::memory_order_relaxed);
}

/// Logs a message with named values. Call it only if log_enabled(), so that nothing is formatted in vain.
void log_event(LogLevel level, LogCategory category, std::initializer_list<LogField> fields, std::string_view text,
               std::source_location where = std::source_location::current()) noexcept;

}  // namespace treadle

/// Logs a message. Its arguments are evaluated only if the level is enabled. Never throws.
#define TREADLE_LOG(level, ...)                                                                    \
  do {                                                                                             \
    if (::treadle::log_enabled(::treadle::LogLevel::level))                                        \
      ::treadle::detail::log_checked(::treadle::LogLevel::level, __FILE__, __LINE__, __VA_ARGS__); \
  } while (false)
