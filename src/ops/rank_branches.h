// Decompositions that depend on ranks which a model does not tell.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ops/decomposition.h"

namespace treadle::ops {

/// As one of several ranks: all that are left.
inline constexpr int kAnyRank = -1;

/// The value, of a rank that is known from here on.
ValueId with_rank(NodeWriter& w, ValueId x, int rank);

using WriteByRank = std::function<std::vector<ValueId>(NodeWriter& w, const std::vector<ValueId>& operands)>;

/// What `write` makes of the operands, those at `ranked` being of one rank that it has to know. Where the model does not tell it, there is
/// a branch of an If for each of `ranks`, the last one for all others. Operands may be absent, but for the first of `ranked`.
std::vector<ValueId> by_rank(NodeWriter& w, std::vector<ValueId> operands, const std::vector<size_t>& ranked, const std::vector<int>& ranks,
                             const WriteByRank& write);

/// The same with the node that is taken apart. @return false if the rank is known, or one of several inputs tells it for all: nothing is
/// done
bool branch_by_rank(Decomposition& d, const std::vector<size_t>& inputs, const std::vector<int>& ranks);

}  // namespace treadle::ops
