// Where the registry (find_op, all_ops) gets its operators from.
#pragma once

#include <span>
#include <vector>

#include "graph/op_def.h"

namespace treadle {

using OperatorFamily = std::vector<OpDef> (*)();

/// Returns all operator families of the build. Defined in ops/list.cpp, because files of operators include this folder, not vice versa.
std::span<const OperatorFamily> operator_families();

}  // namespace treadle
