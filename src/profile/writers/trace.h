// Trace files by their names.
#pragma once

#include <string_view>

#include "treadle/profile.h"

namespace treadle::profile {

/// By the end of a file's name; null: it is no trace.
const TraceFormat* trace_format_of(std::string_view path);

}  // namespace treadle::profile
