// The state that nodes of tree operators (ai.onnx.ml) make when the session is created.
#pragma once

#include <variant>
#include <vector>

#include "graph/kernel.h"
#include "kernels/classical/scores.h"
#include "kernels/trees/tree_ensemble.h"
#include "ops/ml/common.h"

namespace treadle::ops {

/// The trees of a node, and the parameters by which the trees' votes become scores.
struct TreeModel final : PackedState {
  std::variant<kernels::TreeEnsemble<float>, kernels::TreeEnsemble<double>> trees;
  std::vector<double> base;
  kernels::TreeAggregate aggregate = kernels::TreeAggregate::sum;
  kernels::PostTransform transform = kernels::PostTransform::none;
  // Only classifiers use the members below.
  ClassLabels labels;
  int64_t only_class = -1;     // the only class that has votes; -1: several classes have votes
  bool probabilities = false;  // true: no weight is negative, so of two classes, the second one wins above 0.5 instead of 0

  TreeModel(const kernels::TreeDescription& description, bool in_double) : trees(make(description, in_double)) {}
  static std::variant<kernels::TreeEnsemble<float>, kernels::TreeEnsemble<double>> make(const kernels::TreeDescription& description,
                                                                                        bool in_double) {
    if (in_double) return kernels::TreeEnsemble<double>(description);
    return kernels::TreeEnsemble<float>(description);
  }
  size_t size_bytes() const override {
    return std::visit([](const auto& ensemble) { return ensemble.size_bytes(); }, trees);
  }
  int64_t num_targets() const {
    return std::visit([](const auto& ensemble) { return ensemble.num_targets(); }, trees);
  }
};

}  // namespace treadle::ops
