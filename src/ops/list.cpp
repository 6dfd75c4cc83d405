// Lists all operators explicitly, because the linker could drop static objects that register them.
#include "ops/list.h"

#include "graph/op_registry.h"

namespace treadle {

std::span<const OperatorFamily> operator_families() { return ops::kFamilies; }

}  // namespace treadle
