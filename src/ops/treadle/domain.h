// The families of operators of the treadle domain. The optimizer fuses groups of ONNX operators into them.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

std::vector<OpDef> blocked_matmul_ops();
std::vector<OpDef> fused_attention_ops();
std::vector<OpDef> fused_elementwise_ops();
std::vector<OpDef> fused_matmul_ops();
std::vector<OpDef> fused_rotary_ops();
std::vector<OpDef> quantized_matmul_ops();
std::vector<OpDef> quantized_rows_ops();
std::vector<OpDef> rounded_matmul_ops();

}  // namespace treadle::ops
