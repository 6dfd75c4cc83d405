// Writes flame graphs: collapsed stacks (flamegraph.pl, inferno, speedscope) and speedscope's format.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Writes one line per stack: its frames from the thread inward, joined by ";", and the time in ns spent in the innermost frame itself.
std::string to_folded_stacks(const TraceView& view);

/// Writes each row as an "evented" profile of https://www.speedscope.app/file-format-schema.json.
std::string to_speedscope(const TraceView& view, const std::string& title);

}  // namespace treadle::profile
