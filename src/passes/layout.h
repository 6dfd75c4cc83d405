// Layout assignment: keeps images in channels-last layout between convolutions.
#pragma once

#include <cstdint>

#include "graph/graph.h"
#include "graph/rewriter.h"

namespace treadle::passes {

/// Moves Conv, ConvTranspose, pools and operators between them to channels-last operators and axes (N, spatial..., C), with Transposes at
/// the borders of such regions. Applies to float32 images with one or two spatial axes, and to convolutions with constant weights. Inputs
/// and outputs of the graph keep their layout. Returns the number of nodes moved.
/// @param weights_change  also move convolutions with computed weights, and gradients of a joint graph; kernels then pack in every run
int64_t assign_layout(Graph& graph, int64_t limit, bool weights_change = false);

/// Replaces two nodes by one node of `spec`: `first`, and `last`, which is the only reader of its only output. The new node has the name of
/// last's output. Does nothing at the limit of changes.
void replace_pair(Rewriter& rewriter, NodeId first, NodeId last, NodeSpec spec);

/// Returns true for a 1x1 NhwcConv with strides of 1, no pads and one group.
bool is_plain_pointwise(const Graph& graph, const Node& node);

/// Maximum number of channels that counts as few, like the colours that a network's first convolution reads.
inline constexpr int64_t kFewChannels = 4;

}  // namespace treadle::passes
