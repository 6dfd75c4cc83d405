#include "graph/op_def.h"
#include "ops/list.h"

namespace treadle::ops {

std::vector<OpDef> transpose_ops() { return {}; }

}  // namespace treadle::ops
