// Names and patterns in options that mean nothing in the model or the run.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "session/executable.h"
#include "treadle/session.h"

namespace treadle {

/// Of a feed. @throws Error(invalid_argument) naming it, and the inputs that there are
[[noreturn]] void throw_no_input(std::string_view name, std::span<const std::string> inputs);

/// Every option of a run that is keyed by names, in every way of running, and its config entries.
/// @param bound  empty, or per output: memory that the caller wants it in.
/// @throws Error(invalid_argument) naming the option, the name, and the nearest that there are: for an allocator or a device of what is no
/// output of the run, or is bound to memory, and for patterns of dumps and monitors that nothing matches.
void check_names(const Executable& executable, const RunOptions* options, const Monitor* monitor, std::span<const Datum> bound);

/// Names of the nodes, those in bodies as well.
void add_nodes(const Graph& graph, std::vector<std::string>& names);
/// Whether the option has patterns.
bool names_nodes(const std::string& precision);
/// @throws Error(invalid_argument) for a pattern of the option that none of the nodes has, with the nearest.
void check_precision_patterns(const std::string& precision, std::span<const std::string> nodes);

}  // namespace treadle
