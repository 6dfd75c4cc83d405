// Describes nodes as steps of pointwise chains in which each step is computed in the type of its operands.
#pragma once

#include <optional>

#include "graph/op_def.h"

namespace treadle::ops {

/// Returns the node as a step that is computed in the type of its operands and rounded to the type of its result. This is like OpDef::step,
/// but for all types. Only devices compute such chains, and a device may not support every step.
std::optional<PointwiseStep> typed_step(const Graph& graph, const Node& node);

}  // namespace treadle::ops
