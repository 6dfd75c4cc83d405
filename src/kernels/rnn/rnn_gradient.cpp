#include "kernels/rnn/rnn_gradient.h"

#include <cmath>
#include <type_traits>

#include "core/trace/kernel_phases.h"
#include "kernels/rnn/cell.h"
#include "kernels/rnn/rnn_direction.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

// Returns the derivative of the function at x, where y is the function's value at x.
template <typename T>
T slope_of(const RnnActivation& f, T x, T y) {
  const T a = static_cast<T>(f.a), b = static_cast<T>(f.b);
  switch (f.function) {
    case Unary::relu: return x > 0 ? T{1} : T{0};
    case Unary::leaky_relu: return x < 0 ? a : T{1};
    case Unary::thresholded_relu: return x > a ? T{1} : T{0};
    case Unary::sigmoid: return y * (1 - y);
    case Unary::hard_sigmoid: return y > 0 && y < 1 ? a : T{0};
    case Unary::tanh: return 1 - y * y;
    case Unary::scaled_tanh: return b * (a - y * y / a);
    case Unary::elu: return x < 0 ? y + a : T{1};
    case Unary::softplus: return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
    case Unary::softsign: return 1 / ((1 + std::fabs(x)) * (1 + std::fabs(x)));
    case Unary::affine: return a;
    default: return T{1};
  }
}

/// Multiplies d by f'(clip(x)), given y = f(clip(x)); the factor is 0 where x was clipped. Reads x only if rnn_keeps_arguments().
template <typename T>
void times_slope(const RnnParams& p, const RnnActivation& f, const T* x, const T* y, T* d, int64_t n) {
  const T bound = static_cast<T>(p.clip);
  if (p.clip <= 0 && f.function == Unary::sigmoid) {
    for (int64_t i = 0; i < n; ++i) d[i] *= y[i] * (1 - y[i]);
  } else if (p.clip <= 0 && f.function == Unary::tanh) {
    for (int64_t i = 0; i < n; ++i) d[i] *= 1 - y[i] * y[i];
  } else {
    for (int64_t i = 0; i < n; ++i) d[i] *= p.clip > 0 && std::fabs(x[i]) > bound ? T{0} : slope_of(f, x[i], y[i]);
  }
}

/// Returns the scratch elements of the products over all steps.
template <typename T>
size_t products_scratch(const RnnExtents& e, int max_threads) {
  size_t most = 0;
  for (const RnnProduct& product :
       {RnnProduct::rows(e.rows, e.input, e.gates, false), RnnProduct::columns(e.gates, e.input, e.rows, e.gates, e.input),
        RnnProduct::columns(e.first, e.hidden, e.rows, e.gates, e.hidden),
        RnnProduct::columns(e.hidden, e.hidden, e.rows, e.gates, e.hidden),
        RnnProduct::columns(e.hidden, e.hidden, e.rows, e.hidden, e.hidden)})
    most = std::max(most, gemm_scratch_bytes<T>(product.shape, max_threads));
  return most;
}

/// The offsets of the parts of a direction's scratch, in elements.
template <typename T>
struct BackwardParts : RnnBlock {
  int64_t x, z, dx, last, dh, dc, work, r, r_last, product;
  BackwardParts(const RnnParams& p, int max_threads) {
    const RnnExtents e(p);
    const bool gru = p.kind == RnnKind::gru;
    const int64_t state = e.batch * e.hidden;
    x = take(e.rows * e.input);
    z = take(e.rows * e.gates);
    dx = take(e.rows * e.input);
    last = take(gru && p.linear_before_reset ? e.rows * e.hidden : 0);
    dh = take(state);
    dc = take(p.kind == RnnKind::lstm ? state : 0);
    work = take(std::max(state, e.hidden * 2));
    r = take(packed_b_size<T>(e.first, e.hidden));
    r_last = take(gru ? packed_b_size<T>(e.hidden, e.hidden) : 0);
    product = take(static_cast<int64_t>(products_scratch<T>(e, max_threads) / sizeof(T)));
  }
};

template <typename T>
struct BackwardDirection {
  const RnnParams& p;
  const RnnGradientData<T>& data;
  const RnnExtents e;
  const RnnPlaces at;
  const RnnKept<const T*> kept;
  bool is_usual;
  int max_threads;
  ThreadPool* pool;
  T *x_room, *z, *dx, *last, *dh, *dc, *work, *product_work;  // z: gradients of the arguments of the gates' functions
  PackedB<T> R, R_last;

  BackwardDirection(const RnnParams& params, const RnnGradientData<T>& operands, int direction, T* memory, int threads, ThreadPool* tp)
      : p(params),
        data(operands),
        e(params),
        at(params, operands.sequence_lengths, direction),
        kept(params, direction, operands.kept),
        is_usual(is_usual_lstm(params, direction, operands.P != nullptr)),
        max_threads(threads),
        pool(tp) {
    const BackwardParts<T> parts(p, threads);
    x_room = memory + parts.x, z = memory + parts.z, dx = memory + parts.dx, last = memory + parts.last, dh = memory + parts.dh;
    dc = memory + parts.dc, work = memory + parts.work, product_work = memory + parts.product;
    const T* weights = data.R + direction * e.gates * e.hidden;
    R = pack_b(weights, e.first, e.hidden, e.hidden, false, memory + parts.r);
    if (p.kind == RnnKind::gru) R_last = pack_b(weights + e.first * e.hidden, e.hidden, e.hidden, e.hidden, false, memory + parts.r_last);
  }

  bool active(int64_t step, int64_t b) const { return at.active(step, b); }
  const RnnActivation& activation(int i) const { return at.activation(i); }
  const T* peephole(int gate) const { return data.P + (at.direction * 3 + gate) * e.hidden; }
  void multiply(const RnnProduct& product, const T* A, const T* B, T* C) const {
    gemm_batched<T>(product.shape, {}, A, B, C, {}, product_work, max_threads, pool);
  }
  void add_product(const T* A, int64_t lda, const PackedB<T>& B, T* C, int64_t ldc) const {
    gemm<T>(e.batch, {A, lda, 1}, B, C, ldc, {.residual = C, .residual_row = ldc}, pool);
  }

  void run() const {
    at.load_state(data.dY_h, dh);
    if (p.kind == RnnKind::lstm) at.load_state(data.dY_c, dc);
    if (data.dP) std::fill_n(data.dP + at.direction * 3 * e.hidden, 3 * e.hidden, T{0});
    if (kept.arguments) std::copy_n(kept.arguments, e.rows * e.gates, z);
    for (int64_t step = e.steps - 1; step >= 0; --step) back(step);
    at.store_state(dh, data.dinitial_h);
    if (p.kind == RnnKind::lstm) at.store_state(dc, data.dinitial_c);
    finish();
  }

  // Computes the gradients dh (and dc) of the states before a step from those after it, and the step's rows of z.
  void back(int64_t step) const {
    const int64_t H = e.hidden;
    T* pre = z + step * e.batch * e.gates;
    const T *post = kept.gates + step * e.batch * e.gates, *h_before = kept.h + step * e.batch * H;
    const T *c_before = kept.c + step * e.batch * H, *c_after = c_before + e.batch * H;
    PhaseScope cells(KernelPhase::epilogue);
    for (int64_t b = 0; b < e.batch; ++b) {
      T *row = pre + b * e.gates, *d = dh + b * H;
      if (!active(step, b)) {
        std::fill_n(row, e.gates, T{0});
        if (p.kind == RnnKind::gru && p.linear_before_reset) std::fill_n(last + (step * e.batch + b) * H, H, T{0});
        continue;
      }
      if (data.dY) {
        const T* dy = data.dY + at.y(at.time(step, b), b);
        for (int64_t j = 0; j < H; ++j) d[j] += dy[j];
      }
      switch (p.kind) {
        case RnnKind::rnn: rnn_back(row, post + b * e.gates, d); break;
        case RnnKind::gru: gru_back(row, post + b * e.gates, h_before + b * H, kept.aside + (step * e.batch + b) * H, d); break;
        case RnnKind::lstm: lstm_back(row, post + b * e.gates, c_before + b * H, c_after + b * H, d, dc + b * H); break;
      }
    }
    cells.next(KernelPhase::none);
    if (p.kind == RnnKind::gru) gru_back_products(step);
    add_product(pre, e.gates, R, dh, H);
  }

  void rnn_back(T* row, const T* post, T* d) const {
    for (int64_t j = 0; j < e.hidden; ++j) work[j] = d[j], d[j] = 0;
    times_slope(p, activation(0), row, post, work, e.hidden);
    std::copy_n(work, e.hidden, row);
  }

  // The backward pass of a GRU's gates; without linear_before_reset, except the reset gate, whose gradient needs a product first.
  void gru_back(T* row, const T* post, const T* before, const T* aside, T* d) const {
    const int64_t H = e.hidden;
    for (int64_t j = 0; j < H; ++j) work[j] = d[j] * (1 - post[j]);
    times_slope(p, activation(1), row + 2 * H, post + 2 * H, work, H);
    std::copy_n(work, H, row + 2 * H);
    for (int64_t j = 0; j < H; ++j) work[j] = d[j] * (before[j] - post[2 * H + j]), d[j] *= post[j];
    times_slope(p, activation(0), row, post, work, H);
    std::copy_n(work, H, row);
    if (!p.linear_before_reset) return;
    for (int64_t j = 0; j < H; ++j) work[j] = row[2 * H + j] * aside[j];
    times_slope(p, activation(0), row + H, post + H, work, H);
    std::copy_n(work, H, row + H);
  }
  void gru_back_products(int64_t step) const {
    const int64_t H = e.hidden;
    T* pre = z + step * e.batch * e.gates;
    const T* post = kept.gates + step * e.batch * e.gates;
    if (p.linear_before_reset) {
      T* d = last + step * e.batch * H;
      for (int64_t b = 0; b < e.batch; ++b)
        for (int64_t j = 0; active(step, b) && j < H; ++j) d[b * H + j] = pre[b * e.gates + 2 * H + j] * post[b * e.gates + H + j];
      return add_product(d, H, R_last, dh, H);
    }
    // Computes the gradient of the product reset * h.
    gemm<T>(e.batch, {pre + 2 * H, e.gates, 1}, R_last, work, H, {}, pool);
    const T* before = kept.h + step * e.batch * H;
    for (int64_t b = 0; b < e.batch; ++b) {
      if (!active(step, b)) continue;
      T* d = work + b * H;
      const T* reset = post + b * e.gates + H;
      for (int64_t j = 0; j < H; ++j) dh[b * H + j] += d[j] * reset[j], d[j] *= before[b * H + j];
      times_slope(p, activation(0), pre + b * e.gates + H, reset, d, H);
      std::copy_n(d, H, pre + b * e.gates + H);
    }
  }

  void lstm_back(T* row, const T* post, const T* before, const T* after, T* d, T* dcell) const {
    const int64_t H = e.hidden;
    if constexpr (std::is_same_v<T, float>) {
      if (is_usual) return lstm_cell_gradient(H, post, before, after, d, dcell, row);
    }
    T *squashed = work, *flow = work + H;
    rnn_activate(p, activation(2), after, squashed, H);
    for (int64_t j = 0; j < H; ++j) flow[j] = d[j] * post[H + j];
    times_slope(p, activation(2), after, squashed, flow, H);
    for (int64_t j = 0; j < H; ++j) dcell[j] += flow[j], flow[j] = d[j] * squashed[j], d[j] = 0;
    times_slope(p, activation(0), row + H, post + H, flow, H);
    std::copy_n(flow, H, row + H);
    for (int64_t j = 0; data.P && j < H; ++j) dcell[j] += flow[j] * peephole(1)[j];
    // Computes the gradients of the input and forget gates first, then the candidate's.
    for (int64_t j = 0; j < H; ++j) flow[j] = dcell[j] * (p.input_forget ? post[3 * H + j] - before[j] : post[3 * H + j]);
    times_slope(p, activation(0), row, post, flow, H);
    std::copy_n(flow, H, row);
    for (int64_t j = 0; j < H; ++j) flow[j] = p.input_forget ? T{0} : dcell[j] * before[j];
    if (!p.input_forget) times_slope(p, activation(0), row + 2 * H, post + 2 * H, flow, H);
    std::copy_n(flow, H, row + 2 * H);
    for (int64_t j = 0; j < H; ++j) flow[j] = dcell[j] * post[j], dcell[j] *= post[2 * H + j];
    times_slope(p, activation(1), row + 3 * H, post + 3 * H, flow, H);
    std::copy_n(flow, H, row + 3 * H);
    if (!data.P) return;
    for (int64_t j = 0; j < H; ++j) dcell[j] += row[j] * peephole(0)[j] + row[2 * H + j] * peephole(2)[j];
    if (!data.dP) return;
    T* dp = data.dP + at.direction * 3 * H;
    for (int64_t j = 0; j < H; ++j)
      dp[j] += row[j] * before[j], dp[H + j] += row[H + j] * after[j], dp[2 * H + j] += row[2 * H + j] * before[j];
  }

  void column_sums(int64_t n, const T* matrix, T* sums) const {
    if constexpr (std::is_same_v<T, float>) return sum_columns(e.rows, n, matrix, sums);
    std::fill_n(sums, n, T{0});
    for (int64_t row = 0; row < e.rows; ++row)
      for (int64_t j = 0; j < n; ++j) sums[j] += matrix[row * n + j];
  }

  // Computes the gradients of the weights and of X from all steps at once.
  void finish() const {
    const int64_t H = e.hidden;
    const bool gru = p.kind == RnnKind::gru, apart = gru && p.linear_before_reset;
    if (data.dW)
      multiply(RnnProduct::columns(e.gates, e.input, e.rows, e.gates, e.input), z, at.inputs(data.X, x_room),
               data.dW + at.direction * e.gates * e.input);
    if (data.dR) {
      T* dR = data.dR + at.direction * e.gates * H;
      multiply(RnnProduct::columns(e.first, H, e.rows, e.gates, H), z, kept.h, dR);
      if (apart) multiply(RnnProduct::columns(H, H, e.rows, H, H), last, kept.h, dR + e.first * H);
      if (gru && !apart) multiply(RnnProduct::columns(H, H, e.rows, e.gates, H), z + 2 * H, kept.aside, dR + e.first * H);
    }
    if (data.dB) {
      T *input = data.dB + 2 * at.direction * e.gates, *recurrent = input + e.gates;
      column_sums(e.gates, z, input);
      std::copy_n(input, apart ? e.first : e.gates, recurrent);
      if (apart) column_sums(H, last, recurrent + e.first);
    }
    if (data.dX) multiply(RnnProduct::rows(e.rows, e.input, e.gates, false), z, data.W + at.direction * e.gates * e.input, dx);
  }
};

template <typename T>
void add_to_dX(const RnnPlaces& at, const T* dx, T* dX) {
  const RnnParams& p = at.p;
  for (int64_t step = 0; step < p.steps; ++step) {
    for (int64_t b = 0; b < p.batch; ++b) {
      if (!at.active(step, b)) continue;
      const T* from = dx + (step * p.batch + b) * p.input;
      T* to = dX + at.x(at.time(step, b), b);
      for (int64_t j = 0; j < p.input; ++j) to[j] += from[j];
    }
  }
}

}  // namespace

bool has_rnn_slope(Unary function) {
  switch (function) {
    case Unary::relu:
    case Unary::leaky_relu:
    case Unary::thresholded_relu:
    case Unary::sigmoid:
    case Unary::hard_sigmoid:
    case Unary::tanh:
    case Unary::scaled_tanh:
    case Unary::elu:
    case Unary::softplus:
    case Unary::softsign:
    case Unary::affine: return true;
    default: return false;
  }
}

template <typename T>
size_t rnn_gradient_scratch_bytes(const RnnParams& p, int max_threads) {
  return static_cast<size_t>(BackwardParts<T>(p, max_threads).size * p.num_directions()) * sizeof(T);
}

template <typename T>
void rnn_gradient(const RnnParams& p, const RnnGradientData<T>& data, void* scratch, int max_threads, ThreadPool* pool) {
  check_rnn_lengths(p, data.sequence_lengths);
  const BackwardParts<T> parts(p, max_threads);
  T* memory = static_cast<T*>(scratch);
  parallel_for(pool, p.num_directions(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t d = begin; d < end; ++d)
      BackwardDirection<T>(p, data, static_cast<int>(d), memory + d * parts.size, max_threads, pool).run();
  });
  if (!data.dX) return;
  // Runs after both directions, since they may run in parallel but add to the same dX.
  std::fill_n(data.dX, p.steps * p.batch * p.input, T{0});
  for (int d = 0; d < p.num_directions(); ++d)
    add_to_dX<T>(RnnPlaces(p, data.sequence_lengths, d), memory + d * parts.size + parts.dx, data.dX);
}

template size_t rnn_gradient_scratch_bytes<float>(const RnnParams&, int);
template size_t rnn_gradient_scratch_bytes<double>(const RnnParams&, int);
template void rnn_gradient(const RnnParams&, const RnnGradientData<float>&, void*, int, ThreadPool*);
template void rnn_gradient(const RnnParams&, const RnnGradientData<double>&, void*, int, ThreadPool*);

}  // namespace treadle::kernels
