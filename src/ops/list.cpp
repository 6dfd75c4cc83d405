// An explicit list can be read, and a linker cannot drop it.
#include "ops/list.h"

#include "graph/op_registry.h"

namespace treadle {

std::span<const OperatorFamily> operator_families() { return ops::kFamilies; }

}  // namespace treadle
