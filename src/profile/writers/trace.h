// Selects a trace format by the extension of a file name.
#pragma once

#include <string_view>

#include "treadle/profile.h"

namespace treadle::profile {

/// Returns the trace format for a file name; null if its extension is not that of a trace.
const TraceFormat* trace_format_of(std::string_view path);

}  // namespace treadle::profile
