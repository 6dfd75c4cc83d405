// Handles outputs that a model declares sparse. Inside a run sparse constants are dense, so such outputs are converted at its end.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "treadle/model.h"

namespace treadle {

/// Returns the names of the outputs that the model declares sparse.
std::set<std::string> sparse_outputs(const Model& model);
/// Converts values of declared outputs from dense to sparse tensors in COO format. @param names  one per value
void make_sparse(const std::set<std::string>& declared, std::span<const std::string> names, std::vector<Datum>& values);

}  // namespace treadle
