#include "graph/op_def.h"
#include "ops/list.h"

namespace treadle::ops {

std::vector<OpDef> arg_min_max_ops() { return {}; }

}  // namespace treadle::ops
