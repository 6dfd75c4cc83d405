// A recording in the words of ONNX Runtime's profile, for the tools that read one.
#pragma once

#include <string>

#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// An array of Chrome's events. Each run is "model_run"; each node is NODE_fence_before (since the node before it, or the run, on the
/// same thread), NODE_kernel_time and NODE_fence_after. Times are whole microseconds, as its tools expect; shorter nodes have none.
/// @pre the view knows its nodes
std::string to_onnxruntime_trace(const TraceView& view);

}  // namespace treadle::profile
