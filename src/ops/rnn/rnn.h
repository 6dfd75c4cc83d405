// What the recurrent operators and their gradients share.
#pragma once

#include <span>
#include <vector>

#include "graph/attributes.h"
#include "graph/gradient.h"
#include "graph/infer.h"
#include "kernels/rnn/rnn.h"
#include "treadle/tensor.h"

namespace treadle::ops {

// Operands, the same for RNN, GRU and LSTM.
enum RnnInput : int { kX, kW, kR, kB, kSequenceLens, kInitialH, kInitialC, kP };
enum RnnOutput : int { kY, kYh, kYc, kKept };

/// Types of Y, Y_h and Y_c.
void infer_recurrent(InferContext& c, kernels::RnnKind kind);

/// What the attributes and the shapes of W and R say; steps and batch are the caller's.
/// @throws Error(invalid_argument) if they contradict each other.
kernels::RnnParams make_rnn_params(kernels::RnnKind kind, const Attributes& attributes, const Shape& w, const Shape& r);
/// The same without the shapes: extents are 1.
kernels::RnnParams params_of_attributes(kernels::RnnKind kind, const Attributes& attributes);

/// Y, Y_h and, for an LSTM, Y_c of the node's attributes, by operators whose rules are differentiable.
/// @param inputs  X to P of float32 or float64; kNoValue for those that are absent
std::vector<ValueId> recurrent_as_scan(GradientContext& g, kernels::RnnKind kind, std::span<const ValueId> inputs);

}  // namespace treadle::ops
