// The run log: messages about what sessions do and why (treadle/hooks.h). The functions log_…() never throw, and are called only if their
// category is enabled.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/logging.h"
#include "treadle/hooks.h"

namespace treadle {

struct Runtime;
namespace passes {
class PassTrace;
}

/// Applies TREADLE_LOG and TREADLE_LOG_FILE, once for the process, unless the program has set a callback before.
void apply_log_environment();

/// Tells that a client is ready or ends. @param model  name of its model's graph
void log_ready(const Runtime& client, std::string_view model) noexcept;
void log_end(const Runtime& client) noexcept;
/// Tells that a run, or a part of one, begins.
void log_run(const Runtime& client, const HookedRun& run) noexcept;
/// Tells that it has ended. @param error  empty: it has succeeded
void log_run_end(const Runtime& client, const HookedRun& run, double seconds, std::string_view error) noexcept;
/// Tells that a program was compiled, because no earlier run had fed and fetched the same.
void log_compiled(const Runtime& client, std::span<const std::string> fetches, std::span<const std::string> fed, double seconds) noexcept;

/// Tells that the least recently used of more than `most` programs is dropped.
void log_evicted(const Runtime& client, std::span<const std::string> fetches, std::span<const std::string> fed, size_t most) noexcept;
/// Tells on which device each node of the program runs, and why a node is not where it was asked to be.
/// @param lines  see SessionDevices::list_nodes()
void log_placement(const Runtime& client, std::string_view lines) noexcept;
/// Tells why passes left nodes alone.
void log_refusals(const Runtime& client, const passes::PassTrace& trace) noexcept;

}  // namespace treadle
