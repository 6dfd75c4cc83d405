// Writes a recording in the format of ONNX Runtime's profiler, for tools that read it.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Returns an array of Chrome trace events. A run becomes "model_run". A node becomes three events: NODE_fence_before (which begins when
/// the thread became idle), NODE_kernel_time and NODE_fence_after. Times are in whole microseconds, as tools for this format expect.
/// @pre the view has nodes
std::string to_onnxruntime_trace(const TraceView& view);

}  // namespace treadle::profile
