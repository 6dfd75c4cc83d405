// Steps of chains in the types of their operands.
#pragma once

#include <optional>

#include "graph/op_def.h"

namespace treadle::ops {

/// The node as a step that computes in the type of its operands, rounded to the result's: like OpDef::step, but for all types. Only devices
/// compute such chains; a device may not know each step.
std::optional<PointwiseStep> typed_step(const Graph& graph, const Node& node);

}  // namespace treadle::ops
