// Random initial values of parameters.
#pragma once

#include <set>
#include <string>

#include "treadle/train.h"

namespace treadle::train {

std::string_view name_of(Initializer initializer);

/// Overwrites the parameters that options.initialization names. The result depends only on the seed, and on their names and shapes.
/// @param transposed  names of weights stored as [inputs, outputs] instead of [outputs, inputs, ...]
/// @throws Error(not_found) for a pattern that matches no parameter; Error(invalid_argument) if a vector gets an initializer that needs the
/// numbers of inputs and outputs.
void initialize(const NamedTensors& parameters, const TrainerOptions& options, const std::set<std::string>& transposed);

}  // namespace treadle::train
