// The forward pass of RNN, GRU and LSTM that stores intermediate values for the backward pass.
#include <cmath>
#include <string>
#include <type_traits>

#include "core/trace/kernel_phases.h"
#include "kernels/rnn/cell.h"
#include "kernels/rnn/rnn_direction.h"
#include "kernels/scratch_slots.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

double sigmoid_of(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

double function_of(const RnnActivation& f, double x) {
  const double a = static_cast<double>(f.a), b = static_cast<double>(f.b);
  switch (f.function) {
    case Unary::relu: return std::max(x, 0.0);
    case Unary::leaky_relu: return x < 0 ? a * x : x;
    case Unary::thresholded_relu: return x > a ? x : 0;
    case Unary::sigmoid: return sigmoid_of(x);
    case Unary::hard_sigmoid: return std::clamp(a * x + b, 0.0, 1.0);
    case Unary::tanh: return std::tanh(x);
    case Unary::scaled_tanh: return a * std::tanh(b * x);
    case Unary::elu: return x < 0 ? a * std::expm1(x) : x;
    case Unary::softplus: return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
    case Unary::softsign: return x / (1 + std::fabs(x));
    case Unary::affine: return a * x + b;
    default: return x;
  }
}

bool follows_from_value(const RnnActivation& f) { return f.function == Unary::sigmoid || f.function == Unary::tanh; }

/// The offsets of the parts of a direction's scratch, in elements.
template <typename T>
struct KeepingParts : RnnBlock {
  int64_t x, z, bias, r, r_last, product;
  KeepingParts(const RnnParams& p, int max_threads) {
    const RnnExtents e(p);
    x = take(e.rows * e.input);
    z = take(rnn_keeps_arguments(p) ? 0 : e.rows * e.gates);
    bias = take(e.gates);
    r = take(packed_b_size<T>(e.hidden, e.first));
    r_last = take(p.kind == RnnKind::gru ? packed_b_size<T>(e.hidden, e.hidden) : 0);
    const size_t bytes = gemm_scratch_bytes<T>(RnnProduct::rows(e.rows, e.gates, e.input, true).shape, max_threads);
    product = take(static_cast<int64_t>(bytes / sizeof(T)));
  }
};

template <typename T>
struct KeepingDirection {
  const RnnParams& p;
  const RnnKeepingData<T>& data;
  const RnnExtents e;
  const RnnPlaces at;
  const RnnKept<T*> kept;
  bool is_usual;
  ThreadPool* pool;
  T* z;
  PackedB<T> R, R_last;

  KeepingDirection(const RnnParams& params, const RnnKeepingData<T>& operands, int direction, T* memory, int max_threads, ThreadPool* tp)
      : p(params),
        data(operands),
        e(params),
        at(params, operands.sequence_lengths, direction),
        kept(params, direction, operands.kept),
        is_usual(is_usual_lstm(params, direction, operands.P != nullptr)),
        pool(tp) {
    const KeepingParts<T> parts(p, max_threads);
    z = kept.arguments ? kept.arguments : memory + parts.z;
    const T* weights = data.R + direction * e.gates * e.hidden;
    R = pack_b(weights, e.hidden, e.first, e.hidden, true, memory + parts.r);
    if (p.kind == RnnKind::gru) R_last = pack_b(weights + e.first * e.hidden, e.hidden, e.hidden, e.hidden, true, memory + parts.r_last);
    const T* x = at.inputs(data.X, memory + parts.x);
    Epilogue<T> add;
    if (data.B) add.bias = sum_biases(memory + parts.bias);
    gemm_batched<T>(RnnProduct::rows(e.rows, e.gates, e.input, true).shape, {}, x, data.W + direction * e.gates * e.input, z, add,
                    memory + parts.product, max_threads, pool);
  }

  const T* bias(bool recurrent) const { return data.B + (2 * at.direction + (recurrent ? 1 : 0)) * e.gates; }
  const T* peephole(int gate) const { return data.P + (at.direction * 3 + gate) * e.hidden; }
  void add_product(const T* A, const PackedB<T>& B, T* C, int64_t ldc) const {
    gemm<T>(e.batch, {A, e.hidden, 1}, B, C, ldc, {.residual = C, .residual_row = ldc}, pool);
  }
  void activate(int function, const T* x, T* y, int64_t n) const { rnn_activate(p, at.activation(function), x, y, n); }

  void run() const {
    at.load_state(data.initial_h, kept.h);
    if (p.kind == RnnKind::lstm) at.load_state(data.initial_c, kept.c);
    for (int64_t step = 0; step < e.steps; ++step) run_step(step);
    at.store_state(kept.h + e.rows * e.hidden, data.Y_h);
    if (p.kind == RnnKind::lstm) at.store_state(kept.c + e.rows * e.hidden, data.Y_c);
  }

  void run_step(int64_t step) const {
    const int64_t H = e.hidden, state = step * e.batch * H, gates = step * e.batch * e.gates;
    add_product(kept.h + state, R, z + gates, e.gates);
    if (p.kind == RnnKind::gru) gru_products(step);
    const PhaseScope cells(KernelPhase::epilogue);
    for (int64_t b = 0; b < e.batch; ++b) {
      const T *before = kept.h + state + b * H, *c_before = kept.c + state + b * H;
      T *after = kept.h + state + (e.batch + b) * H, *c_after = kept.c + state + (e.batch + b) * H;
      T *pre = z + gates + b * e.gates, *post = kept.gates + gates + b * e.gates;
      const bool active = at.active(step, b);
      if (!active) {
        std::copy_n(before, H, after);
        if (p.kind == RnnKind::lstm) std::copy_n(c_before, H, c_after);
      } else {
        switch (p.kind) {
          case RnnKind::rnn:
            activate(0, pre, post, H);
            std::copy_n(post, H, after);
            break;
          case RnnKind::gru: gru_cell(pre, post, before, after); break;
          case RnnKind::lstm: lstm_cell(pre, post, c_before, c_after, after); break;
        }
      }
      if (!data.Y) continue;
      T* y = data.Y + at.y(active ? at.time(step, b) : step, b);
      active ? std::copy_n(after, H, y) : std::fill_n(y, H, T{0});
    }
  }

  const T* sum_biases(T* to) const {
    const T *input = bias(false), *recurrent = bias(true);
    // If linear_before_reset, the reset gate also multiplies the candidate's recurrent bias. So this bias is not added here.
    const int64_t both = p.kind == RnnKind::gru && p.linear_before_reset ? e.first : e.gates;
    for (int64_t j = 0; j < e.gates; ++j) to[j] = j < both ? input[j] + recurrent[j] : input[j];
    return to;
  }

  // Computes the first two gates, and the candidate's recurrent product: of (state * reset gate), or of the state alone if
  // linear_before_reset.
  void gru_products(int64_t step) const {
    const int64_t H = e.hidden;
    const T* state = kept.h + step * e.batch * H;
    T *pre = z + step * e.batch * e.gates, *post = kept.gates + step * e.batch * e.gates, *aside = kept.aside + step * e.batch * H;
    for (int64_t b = 0; b < e.batch; ++b) {
      activate(0, pre + b * e.gates, post + b * e.gates, 2 * H);
      T* row = aside + b * H;
      const T* reset = post + b * e.gates + H;
      for (int64_t j = 0; j < H; ++j) row[j] = !p.linear_before_reset ? reset[j] * state[b * H + j] : data.B ? bias(true)[2 * H + j] : T{0};
    }
    if (!p.linear_before_reset) return add_product(aside, R_last, pre + 2 * H, e.gates);
    add_product(state, R_last, aside, H);
    for (int64_t b = 0; b < e.batch; ++b)
      for (int64_t j = 0; j < H; ++j) pre[b * e.gates + 2 * H + j] += post[b * e.gates + H + j] * aside[b * H + j];
  }
  void gru_cell(const T* pre, T* post, const T* before, T* after) const {
    const int64_t H = e.hidden;
    activate(1, pre + 2 * H, post + 2 * H, H);
    for (int64_t j = 0; j < H; ++j) after[j] = (1 - post[j]) * post[2 * H + j] + post[j] * before[j];
  }

  // Computes an LSTM cell. Gates are in the order i, o, f, c; peepholes i, o, f.
  void lstm_cell(T* pre, T* post, const T* before, T* after, T* state) const {
    const int64_t H = e.hidden;
    if constexpr (std::is_same_v<T, float>) {
      if (is_usual) return lstm_cell_keeping(H, pre, before, post, after, state);
    }
    for (int64_t j = 0; data.P && j < H; ++j) pre[j] += peephole(0)[j] * before[j], pre[2 * H + j] += peephole(2)[j] * before[j];
    activate(0, pre, post, H);
    if (p.input_forget)
      for (int64_t j = 0; j < H; ++j) post[2 * H + j] = 1 - post[j];
    else
      activate(0, pre + 2 * H, post + 2 * H, H);
    activate(1, pre + 3 * H, post + 3 * H, H);
    for (int64_t j = 0; j < H; ++j) after[j] = post[2 * H + j] * before[j] + post[j] * post[3 * H + j];
    for (int64_t j = 0; data.P && j < H; ++j) pre[H + j] += peephole(1)[j] * after[j];
    activate(0, pre + H, post + H, H);
    activate(2, after, state, H);
    for (int64_t j = 0; j < H; ++j) state[j] *= post[H + j];
  }
};

}  // namespace

template <typename T>
void rnn_activate(const RnnParams& p, const RnnActivation& f, const T* x, T* y, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    if (p.clip > 0) unary_f32(Unary::clip, -p.clip, p.clip, x, y, n);
    unary_f32(f.function, f.a, f.b, p.clip > 0 ? y : x, y, n);
  } else {
    const T bound = static_cast<T>(p.clip);
    for (int64_t i = 0; i < n; ++i) y[i] = function_of(f, p.clip > 0 ? std::clamp(x[i], -bound, bound) : x[i]);
  }
}

void check_rnn_lengths(const RnnParams& p, const int32_t* lengths) {
  for (int64_t b = 0; lengths && b < p.batch; ++b) {
    if (lengths[b] < 0 || lengths[b] > p.steps)
      throw Error(ErrorCode::invalid_argument,
                  "sequence length " + std::to_string(lengths[b]) + " is not in [0, " + std::to_string(p.steps) + "]");
  }
}

// Does not check an LSTM's third activation function, h: its argument is the cell state, which is stored anyway.
bool rnn_keeps_arguments(const RnnParams& p) {
  if (p.clip > 0) return true;
  const int functions = p.kind == RnnKind::rnn ? 1 : 2;
  for (int d = 0; d < p.num_directions(); ++d)
    for (int i = 0; i < functions; ++i)
      if (!follows_from_value(p.activations[d][i])) return true;
  return false;
}

int64_t rnn_kept_columns(const RnnParams& p) {
  const int64_t states = p.kind == RnnKind::rnn ? 1 : 2;  // hidden state; for an LSTM also the cell state, for a GRU also RnnKept::aside
  return (p.gates() * (rnn_keeps_arguments(p) ? 2 : 1) + states) * p.hidden;
}

template <typename T>
size_t rnn_keeping_scratch_bytes(const RnnParams& p, int max_threads) {
  return static_cast<size_t>(KeepingParts<T>(p, max_threads).size * p.num_directions()) * sizeof(T);
}

template <typename T>
void rnn_keeping(const RnnParams& p, const RnnKeepingData<T>& data, void* scratch, int max_threads, ThreadPool* pool) {
  check_rnn_lengths(p, data.sequence_lengths);
  const int64_t size = KeepingParts<T>(p, max_threads).size;
  parallel_for(pool, p.num_directions(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t d = begin; d < end; ++d)
      KeepingDirection<T>(p, data, static_cast<int>(d), static_cast<T*>(scratch) + d * size, max_threads, pool).run();
  });
}

template void rnn_activate(const RnnParams&, const RnnActivation&, const float*, float*, int64_t);
template void rnn_activate(const RnnParams&, const RnnActivation&, const double*, double*, int64_t);
template size_t rnn_keeping_scratch_bytes<float>(const RnnParams&, int);
template size_t rnn_keeping_scratch_bytes<double>(const RnnParams&, int);
template void rnn_keeping(const RnnParams&, const RnnKeepingData<float>&, void*, int, ThreadPool*);
template void rnn_keeping(const RnnParams&, const RnnKeepingData<double>&, void*, int, ThreadPool*);

}  // namespace treadle::kernels
