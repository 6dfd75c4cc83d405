// The options of sessions and of runs as tables: for `treadle options`, docs/options.md, Python, C, and whoever sets options by name.
#pragma once

#include <string>

#include "passes/pipeline.h"
#include "session/option_table.h"
#include "treadle/session.h"

namespace treadle {

const OptionTable<SessionOptions>& session_option_table();
const OptionTable<RunOptions>& run_option_table();

/// As for sessions (treadle/session.h).
void set_option(RunOptions& options, std::string_view name, const std::string& value);
void add_config_entry(RunOptions& options, const std::string& key, const std::string& value);

/// @pre the level is not disable_all
passes::Level optimizer_level(GraphOptimizationLevel level);

/// Applies the config entries to options that still have their default.
/// @throws Error(not_found), suggesting the nearest name, for an unknown "treadle." entry or an unknown pass; Error(invalid_argument) for a
/// value outside of its range.
SessionOptions complete(const SessionOptions& given);

/// Tells of symbols in free_dimension_overrides, and of denotations in denotation_overrides, that no input has, with the nearest. Where
/// there is an on_warning it is called: ONNX Runtime ignores such names, and programs that were written for it go on.
/// @throws Error(not_found) otherwise
void check_symbols(const Model& model, const SessionOptions& options);

/// The tables as docs/options.md has them.
std::string options_markdown();
std::string run_options_markdown();

}  // namespace treadle
