// Suggestions for misspelt names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace treadle {

/// Up to three names most similar to `name`, best first: "a, b or c".
std::string nearest_names(std::string_view name, std::span<const std::string> names);

}  // namespace treadle
