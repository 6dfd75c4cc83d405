// Makes the batch size of a model variable.
#pragma once

#include "session/model.h"
#include "treadle/train.h"

namespace treadle::train {

/// If options.dynamic_batch is set, replaces the model's fixed batch size by a symbol. The batch size is the first fixed first extent
/// among the inputs, and every input that begins with this extent gets the symbol. A Reshape whose constant target shape begins with the
/// batch size is changed to copy this extent from its data.
/// @throws Error(not_implemented) if an output still has the fixed batch size; the error names the node that fixes it.
Model with_dynamic_batch(const Model& model, const TrainerOptions& options);

}  // namespace treadle::train
