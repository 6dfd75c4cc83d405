// How nodes move to channels innermost: a rule for each ChannelsLast::How. assign_layout.cpp says in a table which rule is for which, and
// which images it needs; layout_convolutions.cpp, layout_followers.cpp and layout_gradients.cpp have the rules.
#pragma once

#include <optional>

#include "graph/graph.h"
#include "graph/op_def.h"
#include "passes/layout_values.h"

namespace treadle::passes::layout {

/// A rule replaces the node by one that reads and makes images with channels innermost. @return false if the node's operands or attributes
/// do not allow it: the node stays
using Rule = bool(Layout& layout, const Node& node);

// Nodes that begin regions with channels innermost: no operand needs to have moved.
Rule convolution, quantised_convolution, transposed_convolution, permutation;
Rule input_gradient, weights_gradient, window_gradient;
// Nodes that follow operands that have moved.
Rule elementwise, first_operand, along_axis, slice, pad, resize, reduction, spatial_reduction, measurement;
Rule window, scale_and_shift, normalization, statistics_gradient;
// What window() and scale_and_shift() do in graphs of training.
Rule window_with_places, statistics, computed_scale_and_shift;

/// The node under the same operator, and under the one that computes it with channels innermost.
NodeSpec same_operator(const Node& node);
NodeSpec layout_operator(const Node& node);

/// The extents of a convolution's weights, which are computed or fed; nothing if they are unknown, or if no graph of training allows such.
std::optional<Shape> computed_weights(const Layout& layout, ValueId id, int rank);
/// True if the kernels can list the window's taps on their stack.
bool fits_window(const Node& node, const Shape& weights);

}  // namespace treadle::passes::layout
