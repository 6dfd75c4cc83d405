// Lists all operators explicitly: static registration objects could be dropped by the linker.
#include "ops/list.h"

#include "graph/op_registry.h"

namespace treadle {

std::span<const OperatorFamily> operator_families() { return ops::kFamilies; }

}  // namespace treadle
