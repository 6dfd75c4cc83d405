// Upgrades Scan of opset 8.
#pragma once

#include "graph/graph.h"

namespace treadle::ops {

/// Upgrades a Scan of opset 8, which iterates over a batch (axis 0) of sequences (axis 1) of different lengths. The result is a Scan over
/// the batch, whose body is a Scan over one sequence. A Slice cuts scanned inputs to a sequence's length; a Pad extends the outputs again.
void batched_scan_to_nested(Graph& graph, NodeId id);

}  // namespace treadle::ops
