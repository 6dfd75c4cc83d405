// Products and convolutions with a chain of pointwise operators behind them, which only devices compute.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

/// The operator of a product or convolution with a chain behind it: "ChainedConv" of Conv. Null if there is none.
/// Its inputs are those of the product, absent ones included, then what the chain reads besides. The attribute "steps" is that of a
/// FusedElementwise (fused_elementwise.h) whose input 0 is the product.
const OpDef* chained_form(const OpDef& product);
/// The operators, which are one family with FusedElementwise.
std::vector<OpDef> chained_products();
/// The product's number of inputs, behind which those of the chain stand.
size_t first_chain_input(const OpDef& chained);

}  // namespace treadle::ops
