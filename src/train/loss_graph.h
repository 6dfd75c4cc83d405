// A loss that is an ONNX graph of its own.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// What an input of the loss takes.
enum class LossOperand : uint8_t {
  output,  ///< the value that the loss is taken of; the first input does
  value,   ///< the model's value of its name
  labels,  ///< the first of the others
  feed,    ///< what is fed under its name: all behind
};

/// By input of the loss, in order. @param has_value  whether the model has a value of this name
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

/// Adds the nodes of options.loss_model, and the inputs that are fed. @return its output
/// @throws Error naming both if a value of the graph is not what an input declares, or if the loss has not one output.
ValueId add_loss_graph(Graph& graph, ValueId output, const TrainerOptions& options);

/// Tells one loss from another, whatever file it was read from: of options.loss_model.
std::string loss_digest(const TrainerOptions& options);

}  // namespace treadle::train
