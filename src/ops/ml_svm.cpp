#include "graph/op_def.h"
#include "ops/list.h"

namespace treadle::ops {

std::vector<OpDef> ml_svm_ops() { return {}; }

}  // namespace treadle::ops
