// Source of the operators in the registry (find_op, all_ops).
#pragma once

#include <span>
#include <vector>

#include "graph/op_def.h"

namespace treadle {

using OperatorFamily = std::vector<OpDef> (*)();

/// Returns all operator families of the build. Defined in ops/list.cpp, since the files of operators include this folder.
std::span<const OperatorFamily> operator_families();

}  // namespace treadle
