// Where the registry of operators (find_op, all_ops) has them from.
#pragma once

#include <span>
#include <vector>

#include "graph/op_def.h"

namespace treadle {

using OperatorFamily = std::vector<OpDef> (*)();

/// Every family of the build. It is declared here and defined by the folder above (ops/list.cpp), as the operators' files include this one.
std::span<const OperatorFamily> operator_families();

}  // namespace treadle
