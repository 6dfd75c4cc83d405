// The elementwise part of a recurrent step, for one row of the batch.
#pragma once

#include <cstdint>

#include "kernels/rnn/rnn.h"

namespace treadle::kernels {

/// gates: [4 * hidden] in the order i, o, f, c, overwritten. c and h are the state, updated. peephole: [3 * hidden] for i, o, f, or null.
/// work: `hidden` floats.
void lstm_cell(const RnnParams& params, const RnnActivation* activations, const float* peephole, float* gates, float* c, float* h,
               float* work);

/// The usual LSTM (sigmoid, tanh, tanh, nothing else) in one pass.
void lstm_cell_plain(int64_t hidden, const float* gates, float* c, float* h);

/// The same, keeping the state before it and the gates' values: from gates and before to values, c and h.
void lstm_cell_keeping(int64_t hidden, const float* gates, const float* before, float* values, float* c, float* h);

/// The way back through lstm_cell_keeping, with the states before and after it. dh is used up: it is zero then; dc becomes the gradient of
/// the state before. dgates: [4 * hidden], the gradients of `gates`.
void lstm_cell_gradient(int64_t hidden, const float* values, const float* before, const float* after, float* dh, float* dc, float* dgates);

/// sums[0 .. n) = the sums of the columns of a matrix, each in the order of its rows.
void sum_columns(int64_t rows, int64_t n, const float* matrix, float* sums);

/// values[0 .. n) clamped to [-clip, clip] unless clip is 0, then the function.
void activate_gate(const RnnParams& params, const RnnActivation& activation, float* values, int64_t n);

}  // namespace treadle::kernels
