// The table of losses, one row each.
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
  classes,      ///< int64, or int32 as the options say
  like_output,  ///< shape and dtype of the value that the loss is computed from
  of_model,     ///< labels are as the loss model declares them
};

class LossBuilder;

struct LossRow {
  std::string_view name;
  Loss loss;
  LossLabels labels;
  TrainingFunction<ValueId(LossBuilder&)> build;  ///< adds the nodes of the loss
  /// The trainer's options that this loss uses. If a row names an option, losses whose rows do not name it refuse it.
  std::span<const std::string_view> options = {};
};

/// Returns all losses, in the order in which texts list them.
std::span<const LossRow> all_losses();
/// Returns the row of a loss. @throws Error(invalid_argument) for a value that is no loss
const LossRow& row_of(Loss loss);
inline std::string_view name_of(Loss loss) { return row_of(loss).name; }

/// Adds the loss that the options select, and an input for its labels.
/// @param weight  null, or set to the divisor of the loss, which is a mean: the number of elements or samples, or the sum of the weights of
/// labels that are not ignored.
/// @return the loss, a scalar.
ValueId add_loss(Graph& graph, ValueId output, const TrainerOptions& options, ValueId* weight = nullptr);

}  // namespace treadle::train
