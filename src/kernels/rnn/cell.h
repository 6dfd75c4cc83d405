// The elementwise part of a step of a recurrent layer, for one row of the batch.
#pragma once

#include <cstdint>

#include "kernels/rnn/rnn.h"

namespace treadle::kernels {

/// Computes an LSTM cell.
/// @param gates     [4 * hidden] in the order i, o, f, c; overwritten
/// @param c, h      the state; updated
/// @param peephole  [3 * hidden] for i, o, f, or null
/// @param work      working memory for `hidden` floats
void lstm_cell(const RnnParams& params, const RnnActivation* activations, const float* peephole, float* gates, float* c, float* h,
               float* work);

/// Computes the default LSTM cell (sigmoid, tanh, tanh, no options) in one pass.
void lstm_cell_plain(int64_t hidden, const float* gates, float* c, float* h);

/// Like lstm_cell() for training: keeps the previous cell state `before`. Writes the activated gates to `values`, and writes c and h.
void lstm_cell_keeping(int64_t hidden, const float* gates, const float* before, float* values, float* c, float* h);

/// The backward pass of lstm_cell_keeping(), given the cell states `before` and `after`. Reads dh and sets it to zero. dc becomes the
/// gradient of `before`. @param dgates  [4 * hidden], receives the gradients of `gates`
void lstm_cell_gradient(int64_t hidden, const float* values, const float* before, const float* after, float* dh, float* dc, float* dgates);

/// Sets sums[0 .. n) to the column sums of a matrix; each column is summed in the order of the rows.
void sum_columns(int64_t rows, int64_t n, const float* matrix, float* sums);

/// Clamps values[0 .. n) to [-clip, clip] unless clip is 0, then applies the function.
void activate_gate(const RnnParams& params, const RnnActivation& activation, float* values, int64_t n);

}  // namespace treadle::kernels
