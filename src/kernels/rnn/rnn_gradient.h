// The backward pass of RNN, GRU and LSTM, with everything that ONNX gives them. T is float or double.
#pragma once

#include "kernels/rnn/rnn.h"

namespace treadle::kernels {

/// Operands as rnn() has them, and gradients of the same shapes; null where absent.
template <typename T>
struct RnnGradientData {
  const T *X = nullptr, *W = nullptr, *R = nullptr, *B = nullptr, *P = nullptr;
  const int32_t* sequence_lengths = nullptr;  ///< `batch` values in [0, steps]
  const T *initial_h = nullptr, *initial_c = nullptr;
  const T *dY = nullptr, *dY_h = nullptr, *dY_c = nullptr;
  T *dX = nullptr, *dW = nullptr, *dR = nullptr, *dB = nullptr, *dP = nullptr, *dinitial_h = nullptr, *dinitial_c = nullptr;
};

/// Whether rnn_gradient knows the function's derivative.
bool has_rnn_slope(Unary function);

template <typename T>
size_t rnn_gradient_scratch_bytes(const RnnParams& params, int max_threads);

/// Computes the forward pass again, keeping what its steps made, then goes back through them. Steps past the end of a sequence leave its
/// state alone, and so its gradients. All gradients are written, not added to.
/// @param scratch  rnn_gradient_scratch_bytes<T>(params, max_threads), aligned to 64 bytes
/// @throws Error(invalid_argument) if a sequence length is not in [0, steps].
template <typename T>
void rnn_gradient(const RnnParams& params, const RnnGradientData<T>& data, void* scratch, int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
