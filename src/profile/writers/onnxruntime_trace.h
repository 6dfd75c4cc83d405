// Writes a recording in the format of ONNX Runtime's profiler, for tools that read it.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Returns an array of Chrome's events. Each run is "model_run". Each node is NODE_fence_before (since the previous node, or the run's
/// begin, on the same thread), NODE_kernel_time and NODE_fence_after. Times are rounded to microseconds, as tools for that format expect.
/// @pre the view has nodes
std::string to_onnxruntime_trace(const TraceView& view);

}  // namespace treadle::profile
