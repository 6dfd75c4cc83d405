// Upgrades Scan of opset 8.
#pragma once

#include "graph/graph.h"

namespace treadle::ops {

/// Replaces a Scan of opset 8, which iterates over a batch (axis 0) of sequences (axis 1) of different lengths. It becomes a Scan over the
/// batch whose body is a Scan over the sequence. Lengths become a Slice of the scanned inputs and a Pad of the scan outputs.
void batched_scan_to_nested(Graph& graph, NodeId id);

}  // namespace treadle::ops
