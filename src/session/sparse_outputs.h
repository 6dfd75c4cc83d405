// Converts outputs that a model declares sparse. A run computes them as dense tensors; they become sparse tensors at its end.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "treadle/model.h"

namespace treadle {

/// Returns the names of the outputs that the model declares sparse.
std::set<std::string> sparse_outputs(const Model& model);
/// Converts the values of the outputs in `declared` from dense to sparse (COO) tensors. @param names  names of the values
void make_sparse(const std::set<std::string>& declared, std::span<const std::string> names, std::vector<Datum>& values);

}  // namespace treadle
