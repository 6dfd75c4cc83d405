// Expresses nodes as steps of chains that compute in the types of their operands.
#pragma once

#include <optional>

#include "graph/op_def.h"

namespace treadle::ops {

/// Returns the node as a step that computes in the type of its operands and rounds to the result's type: like OpDef::step, but for all
/// types. Only devices compute such chains, and a device may not support every step.
std::optional<PointwiseStep> typed_step(const Graph& graph, const Node& node);

}  // namespace treadle::ops
