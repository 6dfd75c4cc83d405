// Runs with a deadline: the caller goes on when the time is over, whatever a kernel is doing.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "exec/run/run_control.h"

namespace treadle {

/// Runs `work` on a thread beside the caller's and waits for it, until `deadline` and a little longer, so that work that looks at the
/// time itself can say where it was.
/// @param caller  set to `left` before this returns in vain; from then on nothing that belongs to the caller may be touched.
/// @param work    owns what it uses; must not throw.
/// @return false if the work goes on.
bool run_until(std::chrono::steady_clock::time_point deadline, exec::Caller& caller, std::function<void()> work);

/// What a caller that left is told. @param caller  names the node that has not returned.
[[noreturn]] void throw_left(const exec::Caller& caller);

}  // namespace treadle
