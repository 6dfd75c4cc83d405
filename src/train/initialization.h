// Random values that parameters begin with.
#pragma once

#include <set>
#include <string>

#include "treadle/train.h"

namespace treadle::train {

std::string_view name_of(Initializer initializer);

/// Writes over the parameters that the options name. The bits depend on the seed, the names and the shapes only.
/// @param transposed  names of weights that are [inputs, outputs], not [outputs, inputs, ...]
/// @throws Error(not_found) for a pattern that fits no parameter; Error(invalid_argument) for a vector that is to have inputs and outputs.
void initialize(const NamedTensors& parameters, const TrainerOptions& options, const std::set<std::string>& transposed);

}  // namespace treadle::train
