// The options of sessions and of runs as tables, for `treadle options`, docs/options.md, and the Python and C interfaces.
#pragma once

#include <string>

#include "passes/pipeline.h"
#include "session/option_table.h"
#include "treadle/session.h"

namespace treadle {

const OptionTable<SessionOptions>& session_option_table();
const OptionTable<RunOptions>& run_option_table();

/// The functions below do for RunOptions what treadle/session.h declares for SessionOptions.
void set_option(RunOptions& options, std::string_view name, const std::string& value);
void add_config_entry(RunOptions& options, const std::string& key, const std::string& value);

/// Returns the optimizer's level for a session's option. @pre the level is not disable_all
passes::Level optimizer_level(GraphOptimizationLevel level);

/// Applies the config entries to options that still have their default.
/// @throws Error(not_found), suggesting the nearest name, for an unknown "treadle." entry or an unknown pass; Error(invalid_argument) for a
/// value outside of its range.
SessionOptions complete(const SessionOptions& given);

/// Checks that the model's inputs have the symbols in free_dimension_overrides and the denotations in denotation_overrides. For an unknown
/// name it calls on_warning, if that is set, and goes on, because ONNX Runtime ignores such names.
/// @throws Error(not_found), suggesting the nearest name, if on_warning is not set
void check_symbols(const Model& model, const SessionOptions& options);

/// Return the tables in Markdown, for docs/options.md.
std::string options_markdown();
std::string run_options_markdown();

}  // namespace treadle
