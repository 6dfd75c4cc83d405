// Parameters that lie one after the other in memory, and are one value of the graph.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// One input in place of all parameters, which are pieces of it; their gradients are joined. Neither costs a copy: the executor has
/// pieces lie where they belong. @return the gradient of all.
ValueId join_parameters(Graph& graph, const std::vector<std::string>& names, std::span<const ValueId> grads,
                        const std::string& joined_name);

Tensor zeros(const Shape& shape);

/// Moves parameters, and each part of the optimizer's state, into one tensor, of which those by name are views. @return these, by the names
/// of their inputs.
NamedTensors lay_side_by_side(NamedTensors& parameters, NamedTensors& optimizer_state, const std::vector<std::string>& names,
                              const std::vector<std::string>& state_names, const std::string& joined_name);

}  // namespace treadle::train
