// Internal attributes, which the library sets on nodes. All attributes of the treadle domain are internal. In other domains, their names
// begin with "treadle.", which cannot clash with ONNX's names: those operators may get other attributes in the future.
#pragma once

#include <string_view>

#include "graph/graph.h"

namespace treadle {

inline constexpr std::string_view kInternalPrefix = "treadle.";
/// BatchNormalization in training: running variances use the batch's variance over n - 1, as in PyTorch.
inline constexpr std::string_view kUnbiasedVariance = "treadle.unbiased_variance";

inline bool is_internal_attribute(std::string_view domain, std::string_view name) {
  return domain == "treadle" || name.starts_with(kInternalPrefix);
}

/// Rejects nodes of files that use an internal attribute. For nodes that are read or written.
/// @throws Error(not_implemented) for a node of another domain with an internal attribute
void refuse_internal_attributes(const Node& node);

}  // namespace treadle
