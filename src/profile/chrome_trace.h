// A recording as Chrome's trace JSON, which ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <string>

#include "core/recorder.h"

namespace treadle::profile {

/// Ranges become "X" events, instants "i", counters "C"; times are microseconds since the recorder was made, with nanosecond digits.
/// Ranges of one thread that overlap without nesting, which viewers would drop, go to a further row of that thread.
std::string to_chrome_trace(const Recording& recording);

/// Writes it to a temporary name and renames. @throws Error(io_error)
void write_chrome_trace(const Recording& recording, const std::string& path);

}  // namespace treadle::profile
