// Writes flame graphs: collapsed stacks (flamegraph.pl, inferno, speedscope) and speedscope's format.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Writes a line per stack: its frames from the thread inwards, joined by semicolons, and the ns spent in it but in no deeper stack.
std::string to_folded_stacks(const TraceView& view);

/// Writes each row as an "evented" profile of https://www.speedscope.app/file-format-schema.json.
std::string to_speedscope(const TraceView& view, const std::string& title);

}  // namespace treadle::profile
