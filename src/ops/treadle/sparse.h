// Operators on sparse tensors. They belong to the family of the treadle domain.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

std::vector<OpDef> sparse_ops();

}  // namespace treadle::ops
