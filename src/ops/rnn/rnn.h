// What the recurrent operators and their gradients share.
#pragma once

#include "graph/attributes.h"
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

}  // namespace treadle::ops
