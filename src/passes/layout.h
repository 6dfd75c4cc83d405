// Layout assignment: images with channels innermost, from one convolution to the next.
#pragma once

#include <cstdint>

#include "graph/graph.h"
#include "graph/rewriter.h"

namespace treadle::passes {

/// Conv, ConvTranspose, pools and what lies between them move to operators and axes with channels innermost (N, spatial..., C); Transposes
/// stand where such a region begins and ends. Float32 images with one or two spatial axes; convolutions with constant weights. Returns how
/// many nodes moved. Values of the graph's borders keep their layout.
/// @param weights_change  convolutions with computed weights move, too, and the gradients of a joint graph: kernels pack in every run
int64_t assign_layout(Graph& graph, int64_t limit, bool weights_change = false);

/// NhwcConv and the like take over the activation and the sum that follow them.
int64_t fuse_conv(Graph& graph, int64_t limit);

/// Puts a node of `spec` in the place of `last` and of `first`, whose only output only `last` reads; it has the name of last's output and
/// stands for both. Does nothing at the limit.
void replace_pair(Rewriter& rewriter, NodeId first, NodeId last, NodeSpec spec);

/// Pointwise convolutions of images whose channels are scaled take the scaling over, after fuse_conv.
int64_t fuse_scale(Graph& graph, int64_t limit);
/// A 1x1 NhwcConv with strides of 1 and no pads, in one group.
bool is_plain_pointwise(const Graph& graph, const Node& node);

/// Pointwise convolutions and the depthwise ones that read them become one operator, after fuse_conv.
int64_t fuse_depthwise(Graph& graph, int64_t limit);

/// Colours, say: of an image that a network's first convolution reads.
inline constexpr int64_t kFewChannels = 4;

/// Convolutions of the model's input, if it has few channels, read it with channels second; after fuse_conv.
int64_t read_planes(Graph& graph, int64_t limit);

}  // namespace treadle::passes
