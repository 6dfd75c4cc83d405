#include "graph/op_def.h"
#include "ops/list.h"

namespace treadle::ops {

std::vector<OpDef> non_max_suppression_ops() { return {}; }

}  // namespace treadle::ops
