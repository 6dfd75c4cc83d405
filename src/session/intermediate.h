// Computes every intermediate value of a model, as written in the file.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "treadle/datum.h"
#include "treadle/model.h"

namespace treadle {

/// Runs the model without the optimizer and returns the outputs of all nodes of its main graph, named as in the file and in its order.
/// Values that the opset upgrade replaced are missing.
std::vector<std::pair<std::string, Datum>> run_intermediates(const Model& model, const std::map<std::string, Datum>& feeds);

}  // namespace treadle
