// Writes a recording as Chrome's trace JSON with PyTorch's categories, for ui.perfetto.dev, chrome://tracing and tools that read
// torch.profiler's files.
#pragma once

#include <string>

#include "core/trace/recorder.h"
#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Returns the trace. Nodes become events of category "cpu_op", runs become "ProfilerStep#N", marks have phase "i", and counters "C". Times
/// are in microseconds, with three decimals.
std::string to_chrome_trace(const TraceView& view);

}  // namespace treadle::profile
