// Decompositions that depend on the rank of an operand, where the model may not declare it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ops/decomposition.h"

namespace treadle::ops {

/// Marks, at the end of a list of ranks, all ranks that are not listed.
inline constexpr int kAnyRank = -1;

/// Declares the rank of a value. Returns the value to use from here on.
ValueId with_rank(NodeWriter& w, ValueId x, int rank);

using WriteByRank = std::function<std::vector<ValueId>(NodeWriter& w, const std::vector<ValueId>& operands)>;

/// Calls `write` for the operands, with the common rank of those at the indices `ranked` known. If the model does not declare this rank,
/// the result is an If with a branch for each of `ranks`; the last branch serves all others. Operands may be absent, except the first of
/// `ranked`.
std::vector<ValueId> by_rank(NodeWriter& w, std::vector<ValueId> operands, const std::vector<size_t>& ranked, const std::vector<int>& ranks,
                             const WriteByRank& write);

/// Branches the node to decompose. @return false if the rank is known or follows from another input of `inputs`; the node then stays
bool branch_by_rank(Decomposition& d, const std::vector<size_t>& inputs, const std::vector<int>& ranks);

}  // namespace treadle::ops
