// The environment variables that the library reads, listed for `treadle options` and docs/options.md.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace treadle {

struct EnvironmentVariable {
  std::string_view name, type, text;
};

std::span<const EnvironmentVariable> environment_variables();

/// Returns the table in Markdown, for docs/options.md.
std::string environment_markdown();

}  // namespace treadle
