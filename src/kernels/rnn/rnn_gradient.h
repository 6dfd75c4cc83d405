// Training of RNN, GRU and LSTM with all of ONNX's options: a forward pass that stores intermediate values, and the backward pass that
// reads them. T is float or double.
#pragma once

#include "kernels/rnn/rnn.h"

namespace treadle::kernels {

/// Returns true if rnn_gradient() has the derivative of the function.
bool has_rnn_slope(Unary function);

/// Returns true if not only the values but also the arguments of the gates' functions must be stored. Some slopes follow from the value.
bool rnn_keeps_arguments(const RnnParams& params);
/// Returns the number of stored elements for each direction, step and row of the batch; the state before the first step counts as a step.
int64_t rnn_kept_columns(const RnnParams& params);

/// The operands as in rnn(); absent ones are null.
template <typename T>
struct RnnKeepingData {
  const T *X = nullptr, *W = nullptr, *R = nullptr, *B = nullptr, *P = nullptr;
  const int32_t* sequence_lengths = nullptr;  ///< `batch` values in [0, steps]
  const T *initial_h = nullptr, *initial_c = nullptr;
  T *Y = nullptr, *Y_h = nullptr, *Y_c = nullptr;
  T* kept = nullptr;  ///< the stored values, [directions, steps + 1, batch, rnn_kept_columns]
};

template <typename T>
size_t rnn_keeping_scratch_bytes(const RnnParams& params, int max_threads);

/// Like rnn(), but stores the values that the backward pass reads.
/// @param scratch  rnn_keeping_scratch_bytes<T>(params, max_threads), aligned to 64 bytes
/// @throws Error(invalid_argument) if a sequence length is not in [0, steps]
template <typename T>
void rnn_keeping(const RnnParams& params, const RnnKeepingData<T>& data, void* scratch, int max_threads, ThreadPool* pool);

/// The operands as in rnn(), and gradients of the same shapes; absent ones are null.
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

/// Backward pass through the steps of rnn_keeping(). Steps after the end of a sequence do not change its state, so they pass the state's
/// gradients on unchanged. Gradients are overwritten, not added to.
/// @param scratch  rnn_gradient_scratch_bytes<T>(params, max_threads), aligned to 64 bytes
/// @throws Error(invalid_argument) if a sequence length is not in [0, steps]
template <typename T>
void rnn_gradient(const RnnParams& params, const RnnGradientData<T>& data, void* scratch, int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
