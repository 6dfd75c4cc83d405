// Internal attributes, which only this library sets on nodes. In the treadle domain, all attributes are internal. In other domains, names
// of internal attributes begin with "treadle.", so they cannot clash with attributes that ONNX may add in the future.
#pragma once

#include <string_view>

#include "graph/graph.h"

namespace treadle {

inline constexpr std::string_view kInternalPrefix = "treadle.";
/// For BatchNormalization in training: running variances use the batch variance with the divisor n - 1, as in PyTorch.
inline constexpr std::string_view kUnbiasedVariance = "treadle.unbiased_variance";

inline bool is_internal_attribute(std::string_view domain, std::string_view name) {
  return domain == "treadle" || name.starts_with(kInternalPrefix);
}

/// Called for nodes that are read from or written to files.
/// @throws Error(not_implemented) if a node of another domain than treadle has an internal attribute
void refuse_internal_attributes(const Node& node);

}  // namespace treadle
