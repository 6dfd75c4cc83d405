// Declares the operators of the CTC loss.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

std::vector<OpDef> ctc_ops();

}  // namespace treadle::ops
