// Suggestions for misspelled names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace treadle {

/// Returns up to three names that are most similar to `name`, best first: "a, b or c".
std::string nearest_names(std::string_view name, std::span<const std::string> names);

}  // namespace treadle
