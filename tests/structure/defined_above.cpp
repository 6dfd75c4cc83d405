// What a folder of src/ declares and a folder above it defines, all there is: stands in where the folder is linked without that one
// (cmake/folders.cmake).
#include "graph/op_registry.h"
#include "ops/training/gradient_operator.h"

namespace treadle {

__attribute__((weak)) std::span<const OperatorFamily> operator_families() { return {}; }

namespace ops {

__attribute__((weak)) OpDef gradient_operator() { return {}; }  // of autodiff

}  // namespace ops
}  // namespace treadle
