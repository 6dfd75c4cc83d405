// What the passes of the optimiser did, as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "passes/trace.h"

namespace treadle::cli {

/// The steps of a trace: pass, nodes before and after, time, changes.
nlohmann::ordered_json passes_json(const passes::PassTrace& trace);

}  // namespace treadle::cli
