// Decompositions that depend on the rank of an operand, for models that may not declare this rank.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ops/decomposition.h"

namespace treadle::ops {

/// As the last element of a list of ranks: all ranks that are not listed.
inline constexpr int kAnyRank = -1;

/// Makes the rank of a value known. Returns the value to use instead of x.
ValueId with_rank(NodeWriter& w, ValueId x, int rank);

using WriteByRank = std::function<std::vector<ValueId>(NodeWriter& w, const std::vector<ValueId>& operands)>;

/// Calls `write` to add nodes that depend on a rank: the common rank of the operands with the indices `ranked`. If the model does not
/// declare it, an If is added with a branch for each of `ranks`; its last branch is for all other ranks. Operands may be absent, except the
/// first of `ranked`.
std::vector<ValueId> by_rank(NodeWriter& w, std::vector<ValueId> operands, const std::vector<size_t>& ranked, const std::vector<int>& ranks,
                             const WriteByRank& write);

/// Replaces the node to decompose by an If over the ranks of an input. Returns false, and keeps the node, if the rank is known or follows
/// from another one of `inputs`.
bool branch_by_rank(Decomposition& d, const std::vector<size_t>& inputs, const std::vector<int>& ranks);

}  // namespace treadle::ops
