// Handles losses that are given as ONNX models.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// The kinds of values to which an input of the loss model can be connected.
enum class LossOperand : uint8_t {
  output,  ///< for the first input: the model's output that the loss is computed from
  value,   ///< for an input that has the name of a value of the model: this value
  labels,  ///< for the first input that is neither of the above: the labels
  feed,    ///< for all other inputs: a value that the caller feeds by the input's name
};

/// Returns, for each input of the loss model, the kind of value to which it is connected.
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

/// Adds the nodes of options.loss_model to the graph, and graph inputs for those of its inputs that the caller must feed.
/// @return the loss
/// @throws Error if a value does not fit the loss model's declaration of an input (it names both), or if that model has several outputs.
ValueId add_loss_graph(Graph& graph, ValueId output, const TrainerOptions& options);

/// Returns a digest of options.loss_model, which identifies the loss independently of its file's name.
std::string loss_digest(const TrainerOptions& options);

}  // namespace treadle::train
