// The environment variables that the library reads, as a table: for `treadle options` and docs/options.md.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace treadle {

struct EnvironmentVariable {
  std::string_view name, type, text;
};

std::span<const EnvironmentVariable> environment_variables();

/// The table as docs/options.md has it.
std::string environment_markdown();

}  // namespace treadle
