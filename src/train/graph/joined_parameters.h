// Stores parameters side by side in memory, so that one node can update them all.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// Name of the graph input that contains all parameters in one tensor (TrainerOptions::fused_update).
inline constexpr std::string_view kAllParameters = "treadle.parameters";

/// Replaces all parameters by slices of one new input, and concatenates their gradients. Neither copies elements, because the executor
/// allocates the slices inside the memory of the joined tensor.
/// @return the joined gradient.
ValueId join_parameters(Graph& graph, const std::vector<std::string>& names, std::span<const ValueId> grads,
                        const std::string& joined_name);

Tensor zeros(const Shape& shape);

/// Copies all parameters into one tensor, and each kind of optimizer state (such as all momentums) into another. The given tensors become
/// views of these. @return the joined tensors, by input name.
NamedTensors lay_side_by_side(NamedTensors& parameters, NamedTensors& optimizer_state, const std::vector<std::string>& names,
                              const std::vector<std::string>& state_names, const std::string& joined_name);

}  // namespace treadle::train
