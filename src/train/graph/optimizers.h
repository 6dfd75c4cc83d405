// Optimizers as nodes of a graph that compute new parameters.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "train/graph/row_gradients.h"
#include "treadle/train.h"

namespace treadle::train {

/// The name of a parameter's exponential moving average among its states.
inline constexpr std::string_view kAverage = "average";

/// The name of the sum of a parameter's gradients among its states, if steps accumulate.
inline constexpr std::string_view kGradient = "gradient";

/// Returns the names of the states that the optimizer has for each parameter. States have the parameter's shape and begin as zeros;
/// kAverage begins as a copy of the parameter.
std::vector<std::string> state_names(const TrainerOptions& options);
/// Returns the full name of one parameter's state.
std::string state_name(const std::string& parameter, std::string_view what);

std::string_view name_of(Optimizer optimizer);
std::string_view name_of(Schedule::Kind kind);
/// Returns the names of all optimizers, as a list in a text.
std::string optimizer_names();
std::string schedule_names();

/// Checks the hyperparameters. @throws Error(invalid_argument) for one that the optimizer does not use.
void check_numbers(const TrainerOptions& options);

/// Checks the groups. @throws Error(not_found) for a group whose pattern matches no parameter.
void check_groups(const TrainerOptions& options, const std::vector<std::string>& parameters);

/// Returns the optimizer's hyperparameters by name, with defaults filled in.
std::vector<std::pair<std::string, double>> hyperparameters(const TrainerOptions& options);

/// Adds the inputs that updates read besides gradients.
/// @return the learning rate, and the number of the update
std::pair<ValueId, ValueId> add_scalars(Graph& graph);

/// Adds a node that computes the new version of a value that the trainer keeps.
/// @param kept  name of the value, an input of the graph.
/// @param by    the node's second input, which has been computed.
ValueId updated(Graph& graph, const std::string& kept, const char* op_type, ValueId by, Attributes attributes);

/// Clips and scales the gradients as the options say.
/// @return the new gradients
std::vector<ParameterGradient> add_clipping(Graph& graph, const TrainerOptions& options, std::vector<ParameterGradient> gradients);

/// Adds the node that updates a parameter; its states become inputs named "PARAMETER/STATE". A gradient by rows updates only those rows.
/// @param rate, count  scalars: the learning rate, and the number of this update from 1 (int64)
/// @return the new parameter, then its new states in the order of state_names().
std::vector<ValueId> add_update(Graph& graph, const TrainerOptions& options, const std::string& parameter,
                                const ParameterGradient& gradient, ValueId rate, ValueId count);

}  // namespace treadle::train
