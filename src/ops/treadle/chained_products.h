// Operators that compute a product or convolution and then a chain of pointwise operators. Only devices have kernels for them.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

/// Returns the operator for a product or convolution with a chain after it, such as "ChainedConv" for Conv; null if there is none. Its
/// inputs are those of the product, including absent ones, and then the chain's other operands. The attribute "steps" is that of a
/// FusedElementwise (fused_elementwise.h) whose input 0 is the product.
const OpDef* chained_form(const OpDef& product);
/// Returns the operators with a chain, which are in the same family as FusedElementwise.
std::vector<OpDef> chained_products();
/// Returns the product's number of inputs, after which the chain's operands follow.
size_t first_chain_input(const OpDef& chained);

}  // namespace treadle::ops
