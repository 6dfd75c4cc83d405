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

/// values[0 .. n) clamped to [-clip, clip] unless clip is 0, then the function.
void activate_gate(const RnnParams& params, const RnnActivation& activation, float* values, int64_t n);

}  // namespace treadle::kernels
