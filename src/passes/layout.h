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

/// Fuses NhwcConv and similar operators with the activation and the sum behind them.
int64_t fuse_conv(Graph& graph, int64_t limit);

/// Replaces two nodes by one of `spec`: `first`, whose only output is read by `last` only, and `last`. The new node has the name of last's
/// output and represents both in traces. Does nothing if the limit is reached.
void replace_pair(Rewriter& rewriter, NodeId first, NodeId last, NodeSpec spec);

/// Fuses the scaling of an image's channels into the pointwise convolution behind it; runs after fuse_conv.
int64_t fuse_scale(Graph& graph, int64_t limit);
/// Returns true for a 1x1 NhwcConv with strides of 1, no pads and one group.
bool is_plain_pointwise(const Graph& graph, const Node& node);

/// Fuses pointwise convolutions with the depthwise ones that read them; runs after fuse_conv.
int64_t fuse_depthwise(Graph& graph, int64_t limit);

/// Most channels of an image that counts as few, such as the colours that a network's first convolution reads.
inline constexpr int64_t kFewChannels = 4;

/// Lets convolutions read a model input with few channels in channels-first layout; runs after fuse_conv.
int64_t read_planes(Graph& graph, int64_t limit);

}  // namespace treadle::passes
