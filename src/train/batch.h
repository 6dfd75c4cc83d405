// A batch of any size in a model that was written for one size.
#pragma once

#include "session/model.h"
#include "treadle/train.h"

namespace treadle::train {

/// The model with a symbol for the first extent of its inputs, where options.dynamic_batch asks for it: inputs whose first extent is that
/// of the first input that has a fixed one. Constant shapes of Reshape that state the batch copy it instead.
/// @throws Error(not_implemented) naming the node behind which an output still has the fixed batch.
Model with_dynamic_batch(const Model& model, const TrainerOptions& options);

}  // namespace treadle::train
