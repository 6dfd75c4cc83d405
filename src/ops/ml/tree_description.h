// Reads the attributes of the tree operators of ai.onnx.ml.
#pragma once

#include <string_view>
#include <vector>

#include "graph/attributes.h"
#include "kernels/trees/tree_ensemble.h"

namespace treadle::ops {

/// What TreeEnsembleClassifier and TreeEnsembleRegressor describe.
struct LegacyTrees {
  kernels::TreeDescription description;
  std::vector<double> base_values;
  bool in_double = false;  // some attribute is given as a tensor of double
};

/// @param prefix  "class" or "target", of the attributes that hold the votes.
/// @throws Error(invalid_model) for attributes whose lengths differ, unknown modes, and nodes or targets that do not exist.
LegacyTrees describe_legacy_trees(const Attributes& attributes, std::string_view prefix, int64_t num_targets);

/// The attributes of TreeEnsemble, version 5. @throws Error(invalid_model) as above.
kernels::TreeDescription describe_tree_ensemble(const Attributes& attributes);

}  // namespace treadle::ops
