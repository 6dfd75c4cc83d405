// Defines the functions that a folder of src/ declares and a folder above it defines; there are no others. This file replaces their
// definitions where the lower folder is linked alone (cmake/folders.cmake).
#include "graph/op_registry.h"
#include "ops/training/gradient_operator.h"

namespace treadle {

__attribute__((weak)) std::span<const OperatorFamily> operator_families() { return {}; }

namespace ops {

__attribute__((weak)) OpDef gradient_operator() { return {}; }  // src/autodiff defines the real function

}  // namespace ops
}  // namespace treadle
