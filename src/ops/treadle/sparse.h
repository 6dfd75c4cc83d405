// Operators over sparse tensors. Part of the family of the domain `treadle`.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

std::vector<OpDef> sparse_ops();

}  // namespace treadle::ops
