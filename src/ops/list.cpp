// Lists all operators explicitly. If static objects registered the operators, the linker could drop these objects.
#include "ops/list.h"

#include "graph/op_registry.h"

namespace treadle {

std::span<const OperatorFamily> operator_families() { return ops::kFamilies; }

}  // namespace treadle
