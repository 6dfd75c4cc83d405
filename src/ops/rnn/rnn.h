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

// The indices of inputs and outputs. They are the same for RNN, GRU and LSTM.
enum RnnInput : int { kX, kW, kR, kB, kSequenceLens, kInitialH, kInitialC, kP };
enum RnnOutput : int { kY, kYh, kYc, kKept };

/// Returns the kind of recurrent ONNX operator that the node is; nullopt for other nodes.
std::optional<kernels::RnnKind> rnn_kind(const Node& node);

/// Infers the types of Y, Y_h and Y_c.
void infer_recurrent(InferContext& c, kernels::RnnKind kind);

/// Returns a layer's parameters from its attributes and the shapes of W and R. The caller sets steps and batch. @throws
/// Error(invalid_argument) if these contradict each other.
kernels::RnnParams make_rnn_params(kernels::RnnKind kind, const Attributes& attributes, const Shape& w, const Shape& r);
/// Like make_rnn_params(), but also sets steps and batch, from known shapes. @throws Error(invalid_argument) if an operand has a wrong size
kernels::RnnParams bind_recurrent(const BindContext& c, kernels::RnnKind kind);
/// Returns a layer's parameters from the attributes alone, with 1 for all extents.
kernels::RnnParams params_of_attributes(kernels::RnnKind kind, const Attributes& attributes);

/// Writes a layer as a Scan, which can be differentiated again. Returns Y, Y_h and, for LSTM, Y_c.
/// @param inputs  X to P, float32 or float64; kNoValue for absent ones
std::vector<ValueId> recurrent_as_scan(GradientContext& g, kernels::RnnKind kind, std::span<const ValueId> inputs);

}  // namespace treadle::ops
