// The operators of the loss "ctc", which are among the losses' families.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

std::vector<OpDef> ctc_ops();

}  // namespace treadle::ops
