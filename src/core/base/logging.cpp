#include "core/base/logging.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
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

void default_sink(const LogRecord& record) {
  const bool is_general = record.category == LogCategory::general;
  const std::string line = fmt::format("treadle {}{}{}: {}\n", log_level_name(record.level), is_general ? "" : " ",
                                       is_general ? "" : log_category_name(record.category), record.text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void send(const LogRecord& record) {
  std::lock_guard lock(state().mutex);  // the sink is called for one message at a time
  if (state().sink)
    (*state().sink)(record);
  else
    default_sink(record);
}

}  // namespace

std::array<std::atomic<LogLevel>, kNumLogCategories> detail::lowest_log_levels{
    LogLevel::warning, LogLevel::warning, LogLevel::warning, LogLevel::warning, LogLevel::warning, LogLevel::warning, LogLevel::warning};

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

std::string_view log_category_name(LogCategory category) noexcept {
  constexpr std::array<std::string_view, kNumLogCategories> kNames{"general", "session", "run", "program", "placement", "fusion", "memory"};
  return kNames[static_cast<size_t>(category)];
}

void set_log_sink(LogSink sink) {
  auto shared = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  std::lock_guard lock(state().mutex);
  state().sink = std::move(shared);
}

void set_log_level(LogLevel level, uint32_t categories) noexcept {
  for (size_t c = 0; c < kNumLogCategories; ++c) {
    const bool wanted = (categories >> c & 1U) != 0;
    detail::lowest_log_levels[c].store(wanted ? level : std::max(level, LogLevel::warning), std::memory_order_relaxed);
  }
}

void detail::log(LogLevel level, const char* file, int line, fmt::string_view format, fmt::format_args arguments) noexcept {
  try {
    const std::string text = printable(fmt::vformat(format, arguments));
    send({.level = level, .category = LogCategory::general, .text = text, .fields = {}, .file = relative(file), .line = line});
  } catch (const std::exception&) {
    // Failing to write a message must not end the work that it is about.
  }
}

void log_event(LogLevel level, LogCategory category, std::initializer_list<LogField> fields, std::string_view text,
               std::source_location where) noexcept {
  try {
    const std::string shown = printable(std::string(text));
    send({.level = level,
          .category = category,
          .text = shown,
          .fields = {fields.begin(), fields.size()},
          .file = relative(where.file_name()),
          .line = static_cast<int>(where.line())});
  } catch (const std::exception&) {
    // If a message cannot be written, the operation that logs it must still continue.
  }
}

}  // namespace treadle
