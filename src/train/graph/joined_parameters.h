// Stores parameters side by side in memory, so that one node can update them all.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// Name of the input that contains all parameters (TrainerOptions::fused_update).
inline constexpr std::string_view kAllParameters = "treadle.parameters";

/// Replaces all parameters by pieces of one new input, and joins their gradients. Neither needs a copy, because the executor places the
/// pieces inside the whole.
/// @return the joined gradient.
ValueId join_parameters(Graph& graph, const std::vector<std::string>& names, std::span<const ValueId> grads,
                        const std::string& joined_name);

Tensor zeros(const Shape& shape);

/// Copies the parameters, and each part of the optimizer's state, into one tensor each. The tensors by name become views of these.
/// @return the joined tensors, by their names as inputs.
NamedTensors lay_side_by_side(NamedTensors& parameters, NamedTensors& optimizer_state, const std::vector<std::string>& names,
                              const std::vector<std::string>& state_names, const std::string& joined_name);

}  // namespace treadle::train
