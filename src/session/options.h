// The options of a session as a table: for `treadle options`, docs/options.md, and whoever sets options by name.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "passes/pipeline.h"
#include "treadle/session.h"

namespace treadle {

struct OptionInfo {
  std::string_view name;    ///< the member of SessionOptions
  std::string_view python;  ///< its name in Python, where it differs; for what is no attribute: the method
  std::string_view key;     ///< the session config entry that sets it, if there is one
  std::string_view type;
  std::string_view text;
  std::string (*get)(const SessionOptions&) = nullptr;
  void (*set)(SessionOptions&, const std::string& value) = nullptr;  ///< throws Error(invalid_argument); null: only the program can set it
};

std::span<const OptionInfo> option_table();

/// @pre the level is not disable_all
passes::Level optimizer_level(GraphOptimizationLevel level);

/// @throws Error(not_found) for a key of ours that does not exist, with the nearest ones.
void check_config_key(const std::string& key);
/// The options with what their config entries set, where nothing else has. @throws Error(not_found) naming the nearest for a config entry
/// of ours, or a pass, that does not exist.
SessionOptions complete(const SessionOptions& given);

/// The table as docs/options.md has it.
std::string options_markdown();

}  // namespace treadle
