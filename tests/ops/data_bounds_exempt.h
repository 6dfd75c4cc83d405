// Operands of integers that need no row in the table of bounds.
#pragma once

#include <string_view>

namespace treadle::testing {

/// An operator, or one of its operands, that takes integers, none of which says where or how much.
struct ExemptOperand {
  std::string_view name, reason;
};

inline constexpr ExemptOperand kExemptOperands[] = {
    {"ai.onnx:Loop.M", "it has a body: DataBoundsOf.LoopsAreAsOftenAsMSays"},
    {"com.microsoft:ConvTransposeWithDynamicPads", "DataBoundsOf.PadsOfATransposedConvolutionMayBeNegative"},
    {"com.microsoft:SparseAttention.total_sequence_length", "GroupQueryAttention's, which it becomes"},
    {"treadle:RNNKeeping", "lengths as those of LSTMKeeping, by the same function"},
    {"treadle:GRUKeeping", "lengths as those of LSTMKeeping, by the same function"},
    {"treadle:RNNGrad", "lengths as those of LSTMKeeping, by the same function"},
    {"treadle:GRUGrad", "lengths as those of LSTMKeeping, by the same function"},
    {"treadle:LSTMGrad", "lengths as those of LSTMKeeping, by the same function"},
};

}  // namespace treadle::testing
