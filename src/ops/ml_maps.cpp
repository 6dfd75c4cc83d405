#include "graph/op_def.h"
#include "ops/list.h"

namespace treadle::ops {

std::vector<OpDef> ml_maps_ops() { return {}; }

}  // namespace treadle::ops
