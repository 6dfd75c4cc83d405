// Layout assignment: keeps images in channels-last layout between convolutions.
#pragma once

#include <cstdint>

#include "graph/graph.h"
#include "graph/rewriter.h"

namespace treadle::passes {

/// Replaces Conv, ConvTranspose, pools and operators between them by channels-last forms (N, spatial..., C), with Transposes at the borders
/// of such regions. Applies to float32 images with one or two spatial axes, and to convolutions with constant weights. Inputs and outputs
/// of the graph keep their layout. Returns the number of replaced nodes.
/// @param weights_change  true for a training graph: also replaces gradients, and convolutions with computed weights (packed in every run)
int64_t assign_layout(Graph& graph, int64_t limit, bool weights_change = false);

/// Replaces two nodes by one node, given by `spec`: `first`, and `last`, which alone reads the only output of `first`. The output of the
/// new node has the name of the output of `last`. Does nothing at the limit of changes.
void replace_pair(Rewriter& rewriter, NodeId first, NodeId last, NodeSpec spec);

/// Returns true for an NhwcConv with a 1x1 window, strides of 1, no pads and one group.
bool is_plain_pointwise(const Graph& graph, const Node& node);

/// Maximum number of channels that counts as few, such as the colors that a network's first convolution reads.
inline constexpr int64_t kFewChannels = 4;

}  // namespace treadle::passes
