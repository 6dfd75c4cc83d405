// The recurrent layers RNN, GRU and LSTM in float32, with all of ONNX's options.
//
// Before the first step, one product computes what the inputs of all steps contribute to the gates. Each step adds the product of the state
// and applies the activation functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"
#include "kernels/elementwise/unary_f32.h"
#include "kernels/gemm/gemm.h"

namespace treadle::kernels {

enum class RnnKind : uint8_t { rnn, gru, lstm };
enum class RnnDirection : uint8_t { forward, reverse, bidirectional };

struct RnnActivation {
  Unary function = Unary::tanh;
  float a = 0, b = 0;
};

struct RnnParams {
  RnnKind kind = RnnKind::rnn;
  RnnDirection direction = RnnDirection::forward;
  int64_t steps = 0, batch = 0, input = 0, hidden = 0;
  bool batch_first = false;          ///< corresponds to ONNX's layout = 1
  float clip = 0;                    ///< clamp of the activations' arguments; 0: no clamp
  bool linear_before_reset = false;  ///< for a GRU: the reset gate multiplies the product of the state, not the state
  bool input_forget = false;         ///< for an LSTM: the forget gate is 1 - the input gate
  bool bytes = false;                ///< for an LSTM: round the state like DynamicQuantizeLinear before its product
  /// The activation functions of each direction: f (RNN); f, g (GRU); or f, g, h (LSTM).
  RnnActivation activations[2][3];

  int64_t gates() const { return kind == RnnKind::rnn ? 1 : kind == RnnKind::gru ? 3 : 4; }
  int num_directions() const { return direction == RnnDirection::bidirectional ? 2 : 1; }
  /// Sets ONNX's defaults: sigmoid for f, tanh for the others (tanh for an RNN).
  void set_default_activations();
};

/// ONNX's weights for all directions: W[D, gates * hidden, input], R[D, gates * hidden, hidden], B[D, 2 * gates * hidden] or null, P[D, 3 *
/// hidden] (peepholes of an LSTM) or null. Gates are in ONNX's order: i, o, f, c; z, r, h.
struct RnnWeights {
  const float *W = nullptr, *R = nullptr, *B = nullptr, *P = nullptr;
};

/// Returns the number of floats of the packed weights.
int64_t packed_rnn_size(const RnnParams& params);
/// Packs the weights. @param packed  packed_rnn_size floats, aligned to 64 bytes
void pack_rnn(const RnnParams& params, const RnnWeights& weights, float* packed);

/// The operands; absent ones are null. X[steps, batch, input]; Y[steps, D, batch, hidden], Y_h and Y_c [D, batch, hidden]. If batch_first:
/// X[batch, steps, input], Y[batch, steps, D, hidden], Y_h and Y_c [batch, D, hidden]. Initial states have the shapes of Y_h and Y_c.
struct RnnData {
  const float* X = nullptr;
  const int32_t* sequence_lengths = nullptr;  ///< `batch` values in [0, steps]
  const float *initial_h = nullptr, *initial_c = nullptr;
  float *Y = nullptr, *Y_h = nullptr, *Y_c = nullptr;
};

size_t rnn_scratch_bytes(const RnnParams& params);

/// Computes the layer. After the end of a shorter sequence, Y is 0 and the state does not change. The reverse direction starts at the end
/// of each sequence. @throws Error(invalid_argument) if a sequence length is not in [0, steps]
void rnn(const RnnParams& params, const float* packed, const RnnData& data, void* scratch, ThreadPool* pool);

}  // namespace treadle::kernels
