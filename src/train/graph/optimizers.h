// Optimizers such as Adam, as graph nodes that compute new parameters from gradients.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "train/graph/row_gradients.h"
#include "treadle/train.h"

namespace treadle::train {

/// Name of the optimizer state that contains a parameter's exponential moving average.
inline constexpr std::string_view kAverage = "average";

/// Name of the optimizer state that contains the sum of a parameter's gradients, if several steps accumulate gradients.
inline constexpr std::string_view kGradient = "gradient";

/// Returns the names of the states that the optimizer has for each parameter. States have the parameter's shape and begin as zeros;
/// kAverage begins as a copy of the parameter.
std::vector<std::string> state_names(const TrainerOptions& options);
/// Returns the name of one state of a parameter: "PARAMETER/STATE".
std::string state_name(const std::string& parameter, std::string_view what);

std::string_view name_of(Optimizer optimizer);
std::string_view name_of(Schedule::Kind kind);
/// Returns the names of all optimizers, separated by commas, for help and error texts.
std::string optimizer_names();
std::string schedule_names();

/// Checks the hyperparameters. @throws Error(invalid_argument) for one that the optimizer does not use.
void check_numbers(const TrainerOptions& options);

/// Checks options.groups. @throws Error(not_found) for a group whose pattern matches no parameter.
void check_groups(const TrainerOptions& options, const std::vector<std::string>& parameters);

/// Returns the optimizer's hyperparameters by name, with defaults filled in.
std::vector<std::pair<std::string, double>> hyperparameters(const TrainerOptions& options);

/// Adds the scalar graph inputs that updates read.
/// @return the learning rate, and the number of this update, counted from 1
std::pair<ValueId, ValueId> add_scalars(Graph& graph);

/// Adds a node that computes the new version of a value which the trainer keeps between steps, such as a moving average.
/// @param kept  name of the value. The node's first input is the graph input of this name, which is added if there is none.
/// @param by    the node's second input.
ValueId updated(Graph& graph, const std::string& kept, const char* op_type, ValueId by, Attributes attributes);

/// Clips the gradients element by element (clip_value) and by their global norm (clip_norm), as the options say.
/// @return the new gradients
std::vector<ParameterGradient> add_clipping(Graph& graph, const TrainerOptions& options, std::vector<ParameterGradient> gradients);

/// Adds the node that updates a parameter. Its states become graph inputs. A gradient that has only some rows updates only these rows.
/// @param rate, count  scalars: the learning rate, and the number of this update from 1 (int64)
/// @return the new parameter, then its new states in the order of state_names().
std::vector<ValueId> add_update(Graph& graph, const TrainerOptions& options, const std::string& parameter,
                                const ParameterGradient& gradient, ValueId rate, ValueId count);

}  // namespace treadle::train
