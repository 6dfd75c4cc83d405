// Outputs that a model declares sparse: inside of a run constants are dense.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "treadle/model.h"

namespace treadle {

/// Those of the model, by name.
std::set<std::string> sparse_outputs(const Model& model);
/// Dense values of such outputs become sparse, in COO. @param names  one per value
void make_sparse(const std::set<std::string>& declared, std::span<const std::string> names, std::vector<Datum>& values);

}  // namespace treadle
