// Suggestions for names that do not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace treadle {

/// Up to three of the names that differ the least from `name`, best first: "a, b or c".
std::string nearest_names(std::string_view name, std::span<const std::string> names);

}  // namespace treadle
