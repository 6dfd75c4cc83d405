// Process-wide hooks around runs, and the destination of log messages.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "treadle/export.h"

namespace treadle {

enum class HookPoint : int { pre_run = 0, post_run = 1 };

/// Describes the run that a hook is called for.
struct HookedRun {
  uint64_t run_id = 0;      ///< number of the run in its session
  uint64_t graph_id = 0;    ///< number of the compiled graph; differs between sessions, and between sets of feeds and fetches
  std::string_view tag;     ///< value of RunOptions::tag
  int64_t duration_ns = 0;  ///< post_run: duration of the computation
  std::string_view error;   ///< post_run: the message of the error that ended the run; empty on success
};

using Hook = std::function<void(const HookedRun&)>;
using HookId = uint64_t;

/// Registers a hook before or after every run of every session, including bound and asynchronous runs, and every step of a partial run.
/// Hooks run on the thread of the run: groups in ascending order, hooks of a group in the order of registration. If a pre_run hook throws,
/// the run fails without computing, and no later hook is called. If a post_run hook throws, the run fails too, and its results are dropped.
TREADLE_API HookId register_hook(HookPoint point, int group, Hook hook);
/// Removes a hook. Runs that have begun may still call it. @return false if there is no such hook
TREADLE_API bool unregister_hook(HookId id);

enum class LogSeverity : int { verbose = 0, info = 1, warning = 2, error = 3, fatal = 4 };

/// Sends messages of at least the severity `lowest` to the callback, one at a time, from any thread. The callback must not call the
/// library. An empty callback restores the default: warnings and worse go to standard error.
TREADLE_API void set_log_callback(std::function<void(LogSeverity severity, std::string_view message)> callback,
                                  LogSeverity lowest = LogSeverity::warning);

/// Which messages a callback gets, and in which form.
struct LogFilter {
  LogSeverity lowest = LogSeverity::warning;
  /// Categories, or patterns of them (* and ?), separated by commas: session, run, program, placement, fusion, memory, general. Of other
  /// categories, warnings and worse are still sent.
  std::string categories = "*";
  /// Sends each message as an object of JSON on one line: time (ISO 8601), severity, category, message, and its values by name.
  bool json = false;
};
/// Like the function above. @throws Error(invalid_argument) for a pattern that fits no category
TREADLE_API void set_log_callback(std::function<void(LogSeverity severity, std::string_view message)> callback, const LogFilter& filter);

}  // namespace treadle
