// Finds what is wrong by itself when values differ: a node, or a change of the optimiser.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "treadle/model.h"
#include "treadle/session.h"

namespace treadle::cli {

/// Runs nodes alone, in order, on the inputs that the reference had, and compares their outputs with the reference's.
/// @param differing  names of values that differ, in the order of the nodes
/// @param within     compares our value with the reference's
/// @return a sentence that names the first node that is wrong by itself, or says that none is
std::string blamed_node(const Model& model, const std::map<std::string, Datum>& feeds, const std::map<std::string, Tensor>& reference,
                        const std::vector<std::string>& differing,
                        const std::function<bool(const std::string& name, const Tensor& ours, const Tensor& theirs)>& within);

/// Bisects the changes of the optimiser for the first that makes the value differ.
/// @param within  compares the optimised value with that of the graph as written
/// @return a sentence that names the pass and its change; empty if the value does not differ by the optimiser's changes alone
std::string blamed_pass(const Model& model, const SessionOptions& options, const std::map<std::string, Datum>& feeds,
                        const std::string& value, const std::function<bool(const Tensor& optimized)>& within);

}  // namespace treadle::cli
