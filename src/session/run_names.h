// Names and patterns in the options of a run that mean nothing in it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "session/executable.h"
#include "treadle/session.h"

namespace treadle {

/// Of a feed. @throws Error(invalid_argument) naming it, and the inputs that there are
[[noreturn]] void throw_no_input(std::string_view name, std::span<const std::string> inputs);

/// Every option of a run that is keyed by names, in every way of running.
/// @param bound  empty, or per output: memory that the caller wants it in.
/// @throws Error(invalid_argument) naming the option, the name, and the nearest that there are: for an allocator or a device of what is no
/// output of the run, or is bound to memory, and for patterns of dumps and monitors that nothing matches.
void check_names(const Executable& executable, const RunOptions* options, const Monitor* monitor, std::span<const Datum> bound);

}  // namespace treadle
