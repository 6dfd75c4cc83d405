// The table of all losses. One row describes one loss.
#pragma once

#include <span>
#include <string_view>

#include "core/values/built_types.h"
#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// The dtype and shape that a loss expects of its labels.
enum class LossLabels : uint8_t {
  none,
  classes,      ///< class indices, int64 or (option int32_labels) int32
  like_output,  ///< same shape and dtype as the value that the loss is computed from
  of_model,     ///< as the loss model declares its labels
};

class LossBuilder;

struct LossRow {
  std::string_view name;
  Loss loss;
  LossLabels labels;
  TrainingFunction<ValueId(LossBuilder&)> build;  ///< adds the nodes of the loss
  /// Names of the trainer's options that this loss uses. An option that some row names is refused for losses whose row does not name it.
  std::span<const std::string_view> options = {};
};

/// Returns all losses, in the order in which help and error texts list them.
std::span<const LossRow> all_losses();
/// Returns the row of a loss. @throws Error(invalid_argument) if `loss` is not one of the enumerators
const LossRow& row_of(Loss loss);
inline std::string_view name_of(Loss loss) { return row_of(loss).name; }

/// Adds the loss that the options select, and an input for its labels.
/// @param weight  null, or set to the divisor of the loss, which is a mean: the number of elements or samples, or the sum of the weights of
/// labels that are not ignored.
/// @return the loss, a scalar.
ValueId add_loss(Graph& graph, ValueId output, const TrainerOptions& options, ValueId* weight = nullptr);

}  // namespace treadle::train
