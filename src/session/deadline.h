// Runs with a deadline: the caller returns when the time is over, even if a kernel is still computing.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "exec/run/run_control.h"

namespace treadle {

/// Runs `work` on another thread and waits for it until `deadline` plus a short grace period, so that work which checks the time can end
/// and report the node that it was running.
/// @param caller  `caller.left` is set before this function returns false; from then on `work` must not touch anything that belongs to the
/// caller.
/// @param work  must own everything it uses, and must not throw.
/// @return false if `work` is still running.
bool run_until(std::chrono::steady_clock::time_point deadline, exec::Caller& caller, std::function<void()> work);

/// Throws Error(timed_out) for a caller that returned before its run ended.
/// @param caller  names the node that is still running.
[[noreturn]] void throw_left(const exec::Caller& caller);

}  // namespace treadle
