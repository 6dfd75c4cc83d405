// Flame graphs of a recording: collapsed stacks (flamegraph.pl, inferno, speedscope) and speedscope's own format.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// A line for each stack: frames from the thread inwards, joined by semicolons, and the nanoseconds in it alone.
std::string to_folded_stacks(const TraceView& view);

/// Each row of a thread as an "evented" profile of https://www.speedscope.app/file-format-schema.json.
std::string to_speedscope(const TraceView& view, const std::string& title);

}  // namespace treadle::profile
