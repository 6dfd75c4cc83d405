// Every value of a model's graph, as written.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "treadle/datum.h"
#include "treadle/model.h"

namespace treadle {

/// Runs the model without the optimiser and returns the value of every node of its main graph, by the name in the file, in order.
/// Values that the opset upgrade replaced are missing.
std::vector<std::pair<std::string, Datum>> run_intermediates(const Model& model, const std::map<std::string, Datum>& feeds);

}  // namespace treadle
