// Describes the computation of an Attention node. Kernels of other devices use it, too.
#pragma once

#include "graph/kernel.h"
#include "kernels/attention/attention.h"

namespace treadle::ops {

/// Returns the parameters of an Attention kernel. If there is a past, the strides of keys and values are those of the past and new ones in
/// one tensor. @throws Error(invalid_argument) if the shapes of the operands are inconsistent
kernels::AttentionParams bind_attention(const BindContext& c);

}  // namespace treadle::ops
