// A recording as Chrome's trace JSON in PyTorch's words, which ui.perfetto.dev, chrome://tracing and the readers of torch.profiler's files
// open.
#pragma once

#include <string>

#include "core/trace/recorder.h"
#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Nodes become "cpu_op", runs "ProfilerStep#N", instants "i", counters "C". Times are microseconds since the recorder was made, with
/// nanosecond digits.
std::string to_chrome_trace(const TraceView& view);

}  // namespace treadle::profile
