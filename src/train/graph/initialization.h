// Random initial values of parameters.
#pragma once

#include <set>
#include <string>

#include "treadle/train.h"

namespace treadle::train {

std::string_view name_of(Initializer initializer);

/// Overwrites the parameters that the options name. The result depends only on the seed, the names and the shapes.
/// @param transposed  names of weights stored as [inputs, outputs] instead of [outputs, inputs, ...]
/// @throws Error(not_found) for a pattern that matches no parameter; Error(invalid_argument) for a vector given an initializer that needs
/// the numbers of inputs and outputs.
void initialize(const NamedTensors& parameters, const TrainerOptions& options, const std::set<std::string>& transposed);

}  // namespace treadle::train
