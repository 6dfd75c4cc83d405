// Helpers for the recurrent operators and their gradients.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "graph/attributes.h"
#include "graph/gradient.h"
#include "graph/infer.h"
#include "graph/kernel.h"
#include "kernels/rnn/rnn.h"
#include "treadle/tensor.h"

namespace treadle::ops {

// The indices of inputs and outputs, which are the same for RNN, GRU and LSTM.
enum RnnInput : int { kX, kW, kR, kB, kSequenceLens, kInitialH, kInitialC, kP };
enum RnnOutput : int { kY, kYh, kYc, kKept };

/// Returns which recurrent operator of ONNX the node is; nullopt for other nodes.
std::optional<kernels::RnnKind> rnn_kind(const Node& node);

/// Infers the types of Y, Y_h and Y_c.
void infer_recurrent(InferContext& c, kernels::RnnKind kind);

/// Returns parameters from the attributes and the shapes of W and R. The caller sets steps and batch. @throws Error(invalid_argument) if
/// they contradict each other.
kernels::RnnParams make_rnn_params(kernels::RnnKind kind, const Attributes& attributes, const Shape& w, const Shape& r);
/// Like make_rnn_params(), with steps and batch, once all shapes are known. @throws Error(invalid_argument) if an operand has another size
kernels::RnnParams bind_recurrent(const BindContext& c, kernels::RnnKind kind);
/// Returns parameters from the attributes alone; all extents are 1.
kernels::RnnParams params_of_attributes(kernels::RnnKind kind, const Attributes& attributes);

/// Writes Y, Y_h and, for LSTM, Y_c as a Scan, whose operators can be differentiated again.
/// @param inputs  X to P, float32 or float64; kNoValue for absent ones
std::vector<ValueId> recurrent_as_scan(GradientContext& g, kernels::RnnKind kind, std::span<const ValueId> inputs);

}  // namespace treadle::ops
