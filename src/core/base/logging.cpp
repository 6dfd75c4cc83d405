#include "core/base/logging.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/utf8.h"

namespace treadle {
namespace {

// Never destroyed, since threads may log until the process ends.
struct State {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;  // receives messages; null: the default sink
};
State& state() {
  static State& instance = *new State;
  return instance;
}

std::string_view relative(std::string_view path) {
  for (std::string_view folder : {"/src/", "/include/", "/tests/"})
    if (size_t at = path.rfind(folder); at != std::string_view::npos) return path.substr(at + 1);
  return path;
}

void default_sink(LogLevel level, std::string_view message) {
  std::string_view name = log_level_name(level);
  std::fprintf(stderr, "treadle %.*s: %.*s\n", static_cast<int>(name.size()), name.data(), static_cast<int>(message.size()),
               message.data());
}

}  // namespace

std::atomic<LogLevel> detail::lowest_log_level{LogLevel::warning};

std::string_view log_level_name(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::verbose: return "verbose";
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
    case LogLevel::fatal: return "fatal";
  }
  return "unknown";
}

void set_log_sink(LogSink sink) {
  auto shared = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  std::lock_guard lock(state().mutex);
  state().sink = std::move(shared);
}

void set_log_level(LogLevel level) noexcept { detail::lowest_log_level.store(level, std::memory_order_relaxed); }

void detail::log(LogLevel level, const char* file, int line, fmt::string_view format, fmt::format_args arguments) noexcept {
  try {
    const std::string text = printable(fmt::vformat(format, arguments));
    std::lock_guard lock(state().mutex);  // the sink is called for one message at a time
    if (state().sink)
      (*state().sink)(level, text, relative(file), line);
    else
      default_sink(level, text);
  } catch (const std::exception&) {
    // Failing to write a message must not end the work that it is about.
  }
}

}  // namespace treadle
