// RNN, GRU and LSTM in training, with everything that ONNX gives them: a forward pass that keeps what its steps made, and the backward pass
// that reads it. T is float or double.
#pragma once

#include "kernels/rnn/rnn.h"

namespace treadle::kernels {

/// Whether rnn_gradient knows the function's derivative.
bool has_rnn_slope(Unary function);

/// Whether the gates' arguments are kept, besides their values: some functions' slopes follow from the value alone.
bool rnn_keeps_arguments(const RnnParams& params);
/// Elements that are kept for each direction, step and row of the batch, and for the state before the first step.
int64_t rnn_kept_columns(const RnnParams& params);

/// Operands as rnn() has them; null where absent.
template <typename T>
struct RnnKeepingData {
  const T *X = nullptr, *W = nullptr, *R = nullptr, *B = nullptr, *P = nullptr;
  const int32_t* sequence_lengths = nullptr;  ///< `batch` values in [0, steps]
  const T *initial_h = nullptr, *initial_c = nullptr;
  T *Y = nullptr, *Y_h = nullptr, *Y_c = nullptr;
  T* kept = nullptr;  ///< [directions, steps + 1, batch, rnn_kept_columns]
};

template <typename T>
size_t rnn_keeping_scratch_bytes(const RnnParams& params, int max_threads);

/// As rnn(), and keeps what the backward pass reads.
/// @param scratch  rnn_keeping_scratch_bytes<T>(params, max_threads), aligned to 64 bytes
/// @throws Error(invalid_argument) if a sequence length is not in [0, steps].
template <typename T>
void rnn_keeping(const RnnParams& params, const RnnKeepingData<T>& data, void* scratch, int max_threads, ThreadPool* pool);

/// Operands as rnn() has them, and gradients of the same shapes; null where absent.
template <typename T>
struct RnnGradientData {
  const T *X = nullptr, *W = nullptr, *R = nullptr, *P = nullptr;
  const int32_t* sequence_lengths = nullptr;  ///< `batch` values in [0, steps]
  const T* kept = nullptr;
  const T *dY = nullptr, *dY_h = nullptr, *dY_c = nullptr;
  T *dX = nullptr, *dW = nullptr, *dR = nullptr, *dB = nullptr, *dP = nullptr, *dinitial_h = nullptr, *dinitial_c = nullptr;
};

template <typename T>
size_t rnn_gradient_scratch_bytes(const RnnParams& params, int max_threads);

/// Goes back through the steps that rnn_keeping() has made. Steps past the end of a sequence leave its state alone, and so its gradients.
/// All gradients are written, not added to.
/// @param scratch  rnn_gradient_scratch_bytes<T>(params, max_threads), aligned to 64 bytes
/// @throws Error(invalid_argument) if a sequence length is not in [0, steps].
template <typename T>
void rnn_gradient(const RnnParams& params, const RnnGradientData<T>& data, void* scratch, int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
