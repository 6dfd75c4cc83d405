// Actions around runs, and where log messages go: both for the whole process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "treadle/export.h"

namespace treadle {

enum class HookPoint : int { pre_run = 0, post_run = 1 };

/// What a hook learns about its run.
struct HookedRun {
  uint64_t run_id = 0;      ///< counts the session's runs
  uint64_t graph_id = 0;    ///< of the compiled graph; differs between sessions and between sets of feeds and fetches
  std::string_view tag;     ///< RunOptions::tag
  int64_t duration_ns = 0;  ///< post_run: of the computation
  std::string_view error;   ///< post_run: why it failed; empty if it did not
};

using Hook = std::function<void(const HookedRun&)>;
using HookId = uint64_t;

/// Registers an action before or after every run of every session, bound and asynchronous ones included, and every step of a partial run.
/// Groups run in ascending order, hooks of a group in the order of registration, on the thread of the run.
/// An exception of a pre_run hook fails the run: nothing is computed, and no later hook is called. An exception of a post_run hook fails
/// the run too; its results are dropped.
TREADLE_API HookId register_hook(HookPoint point, int group, Hook hook);
/// Runs that have begun may still call it. @return false if there is no such hook.
TREADLE_API bool unregister_hook(HookId id);

enum class LogSeverity : int { verbose = 0, info = 1, warning = 2, error = 3, fatal = 4 };

/// Messages from `lowest` on go to the callback, one at a time, from any thread; it must not call the library.
/// An empty callback restores the default: warnings and worse go to the standard error stream.
TREADLE_API void set_log_callback(std::function<void(LogSeverity severity, std::string_view message)> callback,
                                  LogSeverity lowest = LogSeverity::warning);

}  // namespace treadle
