#include "train/runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "treadle/error.h"

namespace treadle::train {

Runner::Runner(std::unique_ptr<Graph> graph, const std::vector<const NamedTensors*>& kept, const exec::ProgramOptions& options)
    : graph_(std::move(graph)) {
  program_ = std::make_unique<exec::Program>(graph_, options);
  for (ValueId input : graph_->inputs) {
    names_.push_back(graph_->value(input).name);
    kept_.emplace_back();
    for (const NamedTensors* tensors : kept)
      if (auto found = tensors->find(names_.back()); found != tensors->end()) kept_.back() = found->second;
  }
}

std::vector<Datum> Runner::arrange(const Feeds& feeds, const Datum& labels, const Datum& learning_rate) const {
  std::vector<Datum> arranged = kept_;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (arranged[i].defined()) continue;
    if (names_[i] == kLabels) {
      arranged[i] = labels;
    } else if (names_[i] == kLearningRate) {
      arranged[i] = learning_rate;
    } else if (auto found = feeds.find(names_[i]); found != feeds.end()) {
      arranged[i] = found->second;
    } else {
      throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" is missing", names_[i]));
    }
  }
  return arranged;
}

}  // namespace treadle::train
