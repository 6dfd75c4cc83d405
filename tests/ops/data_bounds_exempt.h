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
    {"com.microsoft:SparseAttention.block_row_indices", "SparseBlocks', which it becomes"},
    {"com.microsoft:VarlenNGramHashMapping.capture_count", "clipped to the sequence's length and the capacity"},
    {"com.microsoft:SparseAttention.total_sequence_length", "GroupQueryAttention's, which it becomes"},
    {"treadle:BroadcastGrad.shape", "an extent of the gradient's, or 1, along which it is summed"},
    {"treadle:SearchScores.presence_mask", "factors of a penalty"},
    {"treadle:SearchScores.logits_processor", "0 or 1: whether Whisper's rules hold"},
    {"treadle:SliceGrad.ends", "not read: the gradient's shape says where the slice ended"},
    {"treadle:SliceGrad.starts", "clipped as those of Slice; what lies elsewhere is refused with the gradient's shape"},
    {"treadle:WindowPositions", "GroupQueryAttention's with a window, whose tests try them"},
    {"treadle:UpdateWindow", "what WindowPositions gives"},
    {"treadle:RNNKeeping", "lengths as those of LSTMKeeping, by the same function"},
    {"treadle:GRUKeeping", "lengths as those of LSTMKeeping, by the same function"},
    {"treadle:RNNGrad", "lengths as those of LSTMKeeping, by the same function"},
    {"treadle:GRUGrad", "lengths as those of LSTMKeeping, by the same function"},
    {"treadle:LSTMGrad", "lengths as those of LSTMKeeping, by the same function"},
};

}  // namespace treadle::testing
