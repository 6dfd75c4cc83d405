// Rules that move nodes to channels-last layout, one for each ChannelsLast::How. assign_layout.cpp has a table of the rules and the images
// they need; layout_convolutions.cpp, layout_followers.cpp and layout_gradients.cpp implement them.
#pragma once

#include <optional>

#include "graph/graph.h"
#include "graph/op_def.h"
#include "passes/layout_values.h"

namespace treadle::passes::layout {

/// Replaces the node by one that reads and writes channels-last images. @return false if the node's operands or attributes do not permit
/// it; the node then stays
using Rule = bool(Layout& layout, const Node& node);

// Rules for nodes that start channels-last regions: they apply even if no operand is in channels-last layout yet.
Rule convolution, quantized_convolution, transposed_convolution, permutation;
Rule input_gradient, weights_gradient, window_gradient;
// Rules for nodes that are moved because an operand has been moved.
Rule elementwise, first_operand, along_axis, slice, pad, resize, reduction, spatial_reduction, measurement;
Rule window, scale_and_shift, normalization, statistics_gradient;
// Variants of window() and scale_and_shift() for training graphs.
Rule window_with_places, statistics, computed_scale_and_shift;

/// Describe a new node with the node's own operator (same_operator), or with the channels-last form of it (layout_operator).
NodeSpec same_operator(const Node& node);
NodeSpec layout_operator(const Node& node);

/// Returns the shape of a convolution's weights, which are computed or fed; nullopt if it is unknown, or if the graph is not for training.
std::optional<Shape> computed_weights(const Layout& layout, ValueId id, int rank);
/// Returns true if the windows of a ConvTranspose are adjacent, without overlaps, gaps, pads or groups. @param weights  of rank 3 or more
bool is_tiled(const Attributes& attributes, const Shape& weights);
/// Returns true if the window has so few elements that kernels can list them on the stack.
bool fits_window(const Node& node, const Shape& weights);

}  // namespace treadle::passes::layout
