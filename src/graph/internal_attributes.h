// Attributes that the library itself gives nodes. Operators of the treadle domain have no others. Where one of another domain needs one,
// its name begins with the domain's, which no name of ONNX's can: its operators may get an attribute of any other name, with a meaning of
// its own.
#pragma once

#include <string_view>

#include "graph/graph.h"

namespace treadle {

inline constexpr std::string_view kInternalPrefix = "treadle.";
/// BatchNormalization in training: running variances take the batch's over n - 1, as PyTorch's do.
inline constexpr std::string_view kUnbiasedVariance = "treadle.unbiased_variance";

inline bool is_internal_attribute(std::string_view domain, std::string_view name) {
  return domain == "treadle" || name.starts_with(kInternalPrefix);
}

/// For what comes from files, or goes there.
/// @throws Error(not_implemented) for a node of another domain with an internal attribute
void refuse_internal_attributes(const Node& node);

}  // namespace treadle
