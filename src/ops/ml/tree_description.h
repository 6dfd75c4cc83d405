// Reads the attributes of the tree operators of ai.onnx.ml.
#pragma once

#include <string_view>
#include <vector>

#include "graph/attributes.h"
#include "kernels/trees/tree_ensemble.h"

namespace treadle::ops {

/// The trees of a TreeEnsembleClassifier or TreeEnsembleRegressor, the operators before TreeEnsemble.
struct LegacyTrees {
  kernels::TreeDescription description;
  std::vector<double> base_values;
  bool in_double = false;  // true if an attribute is a tensor of float64
};

/// Reads the attributes of TreeEnsembleClassifier or TreeEnsembleRegressor.
/// @param prefix  "class" or "target": the prefix of the attributes with the votes of leaves
/// @throws Error(invalid_model) if lengths differ, a mode is unknown, or a node or target does not exist
LegacyTrees describe_legacy_trees(const Attributes& attributes, std::string_view prefix, int64_t num_targets);

/// Reads the attributes of TreeEnsemble, version 5. @throws Error(invalid_model) for the same reasons as describe_legacy_trees()
kernels::TreeDescription describe_tree_ensemble(const Attributes& attributes);

}  // namespace treadle::ops
