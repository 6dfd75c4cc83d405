// Checks that the names and patterns in options refer to something in the model or the run.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "session/executable.h"
#include "treadle/session.h"

namespace treadle {

/// Refuses a feed of this name. @throws Error(invalid_argument) always, listing the inputs that exist
[[noreturn]] void throw_no_input(std::string_view name, std::span<const std::string> inputs);

/// Checks the names in every option of a run that is keyed by names, and in its config entries. All kinds of runs call it.
/// @param bound  empty, or one per output: memory that the caller supplies for it.
/// @throws Error(invalid_argument) naming the option, the name and the nearest valid names: for an allocator or device given for a name
/// that is no output, or for an output bound to memory; and for a dump or monitor pattern that matches nothing.
void check_names(const Executable& executable, const RunOptions* options, const Monitor* monitor, std::span<const Datum> bound);

/// Refuses a pattern that matches no name. @param what  the option, for the message. @param of  what the names are of: "node"
/// @throws Error(invalid_argument) with the nearest names
void check_pattern(std::string_view what, const std::string& pattern, std::span<const std::string> names, std::string_view of);

/// Appends the names of all nodes, including nodes of bodies.
void add_nodes(const Graph& graph, std::vector<std::string>& names);
/// Returns true if the option contains patterns of node names.
bool names_nodes(const std::string& precision);
/// Checks the patterns of the option `precision`. @throws Error(invalid_argument) for a pattern that matches no node, suggesting the
/// nearest names.
void check_precision_patterns(const std::string& precision, std::span<const std::string> nodes);

}  // namespace treadle
