// Makes the batch size of a model variable.
#pragma once

#include "session/model.h"
#include "treadle/train.h"

namespace treadle::train {

/// Replaces the first extent of the model's inputs by a symbol, if options.dynamic_batch is set. This applies to all inputs whose first
/// extent equals that of the first input with a fixed one. A constant shape that a Reshape reads and that begins with the batch size copies
/// it from the data instead.
/// @throws Error(not_implemented) if an output still has the fixed batch size; it names the node that fixes it.
Model with_dynamic_batch(const Model& model, const TrainerOptions& options);

}  // namespace treadle::train
