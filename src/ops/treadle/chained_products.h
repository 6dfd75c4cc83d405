// Operators that compute a matrix product or convolution, followed by a chain of pointwise operators. Only devices have kernels for them.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

/// Returns the operator that computes `product` (a product or convolution) followed by a chain, such as "ChainedConv" for Conv; null if
/// there is none. Its inputs are those of the product, including absent ones, followed by the other operands of the chain. Its attribute
/// "steps" is like that of a FusedElementwise (fused_elementwise.h) whose input 0 is the product.
const OpDef* chained_form(const OpDef& product);
/// Returns the operators whose names begin with "Chained". They are in the same family as FusedElementwise.
std::vector<OpDef> chained_products();
/// Returns the number of inputs that belong to the product. The operands of the chain follow them.
size_t first_chain_input(const OpDef& chained);

}  // namespace treadle::ops
