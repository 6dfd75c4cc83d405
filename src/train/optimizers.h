// Optimizers as nodes that update parameters.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "train/row_gradients.h"
#include "treadle/train.h"

namespace treadle::train {

/// The exponential average of a parameter, among what is kept for it.
inline constexpr std::string_view kAverage = "average";

/// Sums of gradients, where steps accumulate, among what is kept for each parameter.
inline constexpr std::string_view kGradient = "gradient";

/// What is kept for each parameter: tensors of its shape that begin as zeros, but for kAverage, which begins as the parameter.
std::vector<std::string> state_names(const TrainerOptions& options);
/// Of a part of a parameter's state, among those of all.
std::string state_name(const std::string& parameter, std::string_view what);

std::string_view name_of(Optimizer optimizer);
std::string_view name_of(Schedule::Kind kind);

/// @throws Error(invalid_argument) for a number that the optimizer has no use for.
void check_numbers(const TrainerOptions& options);

/// @throws Error(not_found) for a group's pattern that fits none of the parameters.
void check_groups(const TrainerOptions& options, const std::vector<std::string>& parameters);

/// What decides the result of a step besides model, data and learning rate: loss, optimizer with its numbers, schedule, clipping, groups.
/// By name; numbers that nobody gave as they are by default.
std::vector<std::pair<std::string, std::string>> settings_of(const TrainerOptions& options);

/// Inputs that updates read besides gradients: the learning rate, and the number of the update.
std::pair<ValueId, ValueId> add_scalars(Graph& graph);

/// What a node of the operator makes of a value that the trainer keeps, an input of the graph, and of one that has been computed.
ValueId updated(Graph& graph, const std::string& kept, const char* op_type, ValueId by, Attributes attributes);

/// Cuts and scales the gradients as the options say. @return them
std::vector<ParameterGradient> add_clipping(Graph& graph, const TrainerOptions& options, std::vector<ParameterGradient> gradients);

/// Adds the node that updates a parameter, whose state becomes inputs "PARAMETER/WHAT". A gradient by rows updates those rows.
/// @param rate, count  scalars: the learning rate, and the number of this update from 1 (int64)
/// @return the new parameter, then its state in the order of state_names().
std::vector<ValueId> add_update(Graph& graph, const TrainerOptions& options, const std::string& parameter,
                                const ParameterGradient& gradient, ValueId rate, ValueId count);

}  // namespace treadle::train
