// Which passes made a node what it is, as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "passes/trace.h"

namespace treadle::cli {

/// The steps of a trace: pass, nodes before and after, time, changes.
nlohmann::ordered_json passes_json(const passes::PassTrace& trace);
/// Adds `passes` to the nodes of a profile's document, where there are any.
void add_passes(const passes::PassTrace& trace, nlohmann::ordered_json& profile);

}  // namespace treadle::cli
