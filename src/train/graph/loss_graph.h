// Handles losses that are given as ONNX models.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// The kinds of values to which an input of the loss can be connected.
enum class LossOperand : uint8_t {
  output,  ///< the output that is trained; connected to the first input
  value,   ///< the model's value with the input's name
  labels,  ///< the labels; the first input that is neither of the above
  feed,    ///< a feed with the input's name; all other inputs
};

/// Returns the operand for each input of the loss, in order.
/// @param has_value  returns true if the model has a value of this name
template <typename Names, typename HasValue>
std::vector<LossOperand> loss_operands(const Names& inputs, const HasValue& has_value) {
  std::vector<LossOperand> operands;
  bool has_labels = false;
  for (const std::string& name : inputs) {
    if (operands.empty())
      operands.push_back(LossOperand::output);
    else if (has_value(name))
      operands.push_back(LossOperand::value);
    else
      operands.push_back(has_labels ? LossOperand::feed : LossOperand::labels), has_labels = true;
  }
  return operands;
}

/// Adds the nodes of options.loss_model to the graph, and its inputs that are fed.
/// @return the loss
/// @throws Error that names both if a value of the graph does not fit an input's declaration; Error if the loss has not exactly one output.
ValueId add_loss_graph(Graph& graph, ValueId output, const TrainerOptions& options);

/// Returns a digest of options.loss_model, which identifies the loss independently of its file's name.
std::string loss_digest(const TrainerOptions& options);

}  // namespace treadle::train
