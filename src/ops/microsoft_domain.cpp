#include "graph/op_def.h"
#include "ops/list.h"

namespace treadle::ops {

std::vector<OpDef> microsoft_domain_ops() { return {}; }

}  // namespace treadle::ops
