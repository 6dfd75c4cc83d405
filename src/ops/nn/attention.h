// Describes the computation of an Attention node, for kernels of devices.
#pragma once

#include "graph/kernel.h"
#include "kernels/attention/attention.h"

namespace treadle::ops {

/// Returns the parameters. If there is a past, strides of keys and values are those of the joined ones. @throws Error(invalid_argument) if
/// the operands' shapes do not fit together
kernels::AttentionParams bind_attention(const BindContext& c);

}  // namespace treadle::ops
