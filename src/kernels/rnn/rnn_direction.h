// Helpers shared by the forward pass for training and the backward pass of the recurrent layers.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/gemm/gemm.h"
#include "kernels/rnn/rnn_gradient.h"

namespace treadle::kernels {

/// The sizes that the forward and the backward pass need.
struct RnnExtents {
  // rows: steps * batch; first: number of columns of those gates whose recurrent product uses h itself (all but a GRU's candidate).
  int64_t steps, batch, input, hidden, gates, rows, first;
  explicit RnnExtents(const RnnParams& p)
      : steps(p.steps),
        batch(p.batch),
        input(p.input),
        hidden(p.hidden),
        gates(p.gates() * p.hidden),
        rows(p.steps * p.batch),
        first(p.kind == RnnKind::gru ? 2 * p.hidden : p.gates() * p.hidden) {}
};

/// Divides a block of memory into parts: take() returns the offset of a part in elements, aligned to a cache line.
struct RnnBlock {
  int64_t size = 0;
  int64_t take(int64_t count) {
    const int64_t at = size;
    size += (count + 15) / 16 * 16;
    return at;
  }
};

/// The shape of C = op(A) op(B) (+ C) with unpacked operands.
struct RnnProduct {
  GemmShape shape;
  static RnnProduct columns(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb) {  // the product A^T B; both have K rows
    return {{.M = M, .N = N, .K = K, .a_row = 1, .a_col = lda, .ldb = ldb, .ldc = N}};
  }
  static RnnProduct rows(int64_t M, int64_t N, int64_t K, bool transposed) {  // the product A B, or A B^T
    return {{.M = M, .N = N, .K = K, .a_row = K, .ldb = transposed ? K : N, .b_transposed = transposed, .ldc = N}};
  }
};

/// The values that the forward pass stores for one direction. Rows are in the order of the steps, also in the reverse direction.
template <typename P>
struct RnnKept {
  P gates = nullptr;      ///< [steps, batch, gates], results of the activation functions
  P arguments = nullptr;  ///< arguments of the activation functions, if rnn_keeps_arguments()
  P h = nullptr;          ///< [steps + 1, batch, hidden]; element 0 is the initial state
  P c = nullptr;          ///< cell state of an LSTM, in the layout of h
  P aside = nullptr;      ///< for a GRU, [steps, batch, hidden]: reset * h, or the product that the reset gate multiplies

  RnnKept(const RnnParams& p, int direction, P memory) {
    const int64_t rows = p.steps * p.batch, gate_size = rows * p.gates() * p.hidden, states = (rows + p.batch) * p.hidden;
    memory += direction * (p.steps + 1) * p.batch * rnn_kept_columns(p);
    auto take = [&](int64_t count) { return std::exchange(memory, memory + count); };
    gates = take(gate_size);
    if (rnn_keeps_arguments(p)) arguments = take(gate_size);
    h = take(states);
    c = p.kind == RnnKind::lstm ? take(states) : h;  // only an LSTM uses c
    if (p.kind == RnnKind::gru) aside = take(rows * p.hidden);
  }
};

/// The positions of one direction's rows in the operands.
struct RnnPlaces {
  const RnnParams& p;
  const int32_t* lengths;
  int direction;
  bool reverse;

  RnnPlaces(const RnnParams& params, const int32_t* sequence_lengths, int d)
      : p(params), lengths(sequence_lengths), direction(d), reverse(params.direction == RnnDirection::reverse || d == 1) {}

  const RnnActivation& activation(int i) const { return p.activations[direction][i]; }
  bool active(int64_t step, int64_t b) const { return step < length(b); }
  int64_t length(int64_t b) const { return lengths ? lengths[b] : p.steps; }
  int64_t time(int64_t step, int64_t b) const { return reverse ? length(b) - 1 - step : step; }
  int64_t x(int64_t t, int64_t b) const { return (p.batch_first ? b * p.steps + t : t * p.batch + b) * p.input; }
  int64_t y(int64_t t, int64_t b) const {
    const int64_t D = p.num_directions();
    return (p.batch_first ? (b * p.steps + t) * D + direction : (t * D + direction) * p.batch + b) * p.hidden;
  }
  int64_t state(int64_t b) const { return (p.batch_first ? b * p.num_directions() + direction : direction * p.batch + b) * p.hidden; }

  /// Returns X in the order of the steps: in place, or copied to `room`. In the copy, rows after the end of a sequence are zero.
  template <typename T>
  const T* inputs(const T* X, T* room) const {
    if (!reverse && !p.batch_first && lengths == nullptr) return X;
    for (int64_t step = 0; step < p.steps; ++step) {
      for (int64_t b = 0; b < p.batch; ++b) {
        T* row = room + (step * p.batch + b) * p.input;
        if (active(step, b))
          std::copy_n(X + x(time(step, b), b), p.input, row);
        else
          std::fill_n(row, p.input, T{0});
      }
    }
    return room;
  }
  template <typename T>
  void load_state(const T* from, T* to) const {
    for (int64_t b = 0; b < p.batch; ++b) {
      if (from)
        std::copy_n(from + state(b), p.hidden, to + b * p.hidden);
      else
        std::fill_n(to + b * p.hidden, p.hidden, T{0});
    }
  }
  template <typename T>
  void store_state(const T* from, T* to) const {
    for (int64_t b = 0; to && b < p.batch; ++b) std::copy_n(from + b * p.hidden, p.hidden, to + state(b));
  }
};

/// Computes y = f(clip(x)). T is float or double.
template <typename T>
void rnn_activate(const RnnParams& p, const RnnActivation& f, const T* x, T* y, int64_t n);

/// Returns true for an LSTM with sigmoid, tanh and tanh and no options, for which cell.h has vectorized loops.
inline bool is_usual_lstm(const RnnParams& p, int direction, bool has_peepholes) {
  const RnnActivation* f = p.activations[direction];
  return p.kind == RnnKind::lstm && !has_peepholes && p.clip == 0 && !p.input_forget && f[0].function == Unary::sigmoid &&
         f[1].function == Unary::tanh && f[2].function == Unary::tanh;
}

/// Checks that the sequence lengths are in [0, p.steps]. @throws Error(invalid_argument)
void check_rnn_lengths(const RnnParams& p, const int32_t* lengths);

}  // namespace treadle::kernels
