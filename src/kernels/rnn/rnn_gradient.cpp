#include "kernels/rnn/rnn_gradient.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "treadle/error.h"

namespace treadle::kernels {
namespace {

template <typename T>
T sigmoid_of(T x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

template <typename T>
T function_of(const RnnActivation& f, T x) {
  const T a = static_cast<T>(f.a), b = static_cast<T>(f.b);
  switch (f.function) {
    case Unary::relu: return std::max(x, T{0});
    case Unary::leaky_relu: return x < 0 ? a * x : x;
    case Unary::thresholded_relu: return x > a ? x : T{0};
    case Unary::sigmoid: return sigmoid_of(x);
    case Unary::hard_sigmoid: return std::clamp(a * x + b, T{0}, T{1});
    case Unary::tanh: return std::tanh(x);
    case Unary::scaled_tanh: return a * std::tanh(b * x);
    case Unary::elu: return x < 0 ? a * std::expm1(x) : x;
    case Unary::softplus: return std::max(x, T{0}) + std::log1p(std::exp(-std::fabs(x)));
    case Unary::softsign: return x / (1 + std::fabs(x));
    case Unary::affine: return a * x + b;
    default: return x;
  }
}

// The derivative at x, where the function is y.
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
    case Unary::softplus: return sigmoid_of(x);
    case Unary::softsign: return 1 / ((1 + std::fabs(x)) * (1 + std::fabs(x)));
    case Unary::affine: return a;
    default: return T{1};
  }
}

/// y = f(clip(x))
template <typename T>
void activate(const RnnParams& p, const RnnActivation& f, const T* x, T* y, int64_t n) {
  const T bound = static_cast<T>(p.clip);
  if constexpr (std::is_same_v<T, float>) {
    if (p.clip > 0) unary_f32(Unary::clip, -bound, bound, x, y, n);
    unary_f32(f.function, f.a, f.b, p.clip > 0 ? y : x, y, n);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = function_of(f, p.clip > 0 ? std::clamp(x[i], -bound, bound) : x[i]);
  }
}

/// d *= f'(clip(x)), with y = f(clip(x)); 0 where x was cut off.
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

/// Sizes that all parts need.
struct Extents {
  int64_t steps, batch, input, hidden, gates, rows, first;  // rows = steps * batch; first: columns of gates whose product is with h itself
  explicit Extents(const RnnParams& p)
      : steps(p.steps),
        batch(p.batch),
        input(p.input),
        hidden(p.hidden),
        gates(p.gates() * p.hidden),
        rows(p.steps * p.batch),
        first(p.kind == RnnKind::gru ? 2 * p.hidden : p.gates() * p.hidden) {}
};

/// C = op(A) op(B) (+ C) without packing beforehand.
template <typename T>
struct Product {
  GemmShape shape;
  static Product columns(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb) {  // A^T B, both with K rows
    return {{.M = M, .N = N, .K = K, .a_row = 1, .a_col = lda, .ldb = ldb, .ldc = N}};
  }
  static Product rows(int64_t M, int64_t N, int64_t K, bool transposed) {  // A B, or A B^T
    return {{.M = M, .N = N, .K = K, .a_row = K, .ldb = transposed ? K : N, .b_transposed = transposed, .ldc = N}};
  }
};

template <typename T>
size_t product_scratch(const Extents& e, int max_threads) {
  size_t most = 0;
  for (const Product<T>& product :
       {Product<T>::rows(e.rows, e.gates, e.input, true), Product<T>::rows(e.rows, e.input, e.gates, false),
        Product<T>::columns(e.gates, e.input, e.rows, e.gates, e.input), Product<T>::columns(e.first, e.hidden, e.rows, e.gates, e.hidden),
        Product<T>::columns(e.hidden, e.hidden, e.rows, e.gates, e.hidden),
        Product<T>::columns(e.hidden, e.hidden, e.rows, e.hidden, e.hidden)})
    most = std::max(most, gemm_scratch_bytes<T>(product.shape, max_threads));
  return most;
}

/// Where the parts of the scratch begin, in elements.
template <typename T>
struct Parts {
  int64_t x, z, a, h, c, aside, last, dh, dc, work, r, r_back, r_last, r_last_back, size = 0;
  Parts(const RnnParams& p, const Extents& e) {
    const bool gru = p.kind == RnnKind::gru, lstm = p.kind == RnnKind::lstm;
    const int64_t states = (e.steps + 1) * e.batch * e.hidden, state = e.batch * e.hidden;
    x = take(e.rows * e.input);
    z = take(e.rows * e.gates);
    a = take(e.rows * e.gates);
    h = take(states);
    c = take(lstm ? states : 0);
    aside = take(gru ? e.rows * e.hidden : 0);
    last = take(gru && p.linear_before_reset ? e.rows * e.hidden : 0);
    dh = take(state);
    dc = take(lstm ? state : 0);
    work = take(std::max(state, e.hidden * 2));
    r = take(packed_b_size<T>(e.hidden, e.first));
    r_back = take(packed_b_size<T>(e.first, e.hidden));
    r_last = take(gru ? packed_b_size<T>(e.hidden, e.hidden) : 0);
    r_last_back = take(gru ? packed_b_size<T>(e.hidden, e.hidden) : 0);
  }
  int64_t take(int64_t count) {
    const int64_t at = size;
    size += (count + 15) / 16 * 16;
    return at;
  }
};

/// One direction. Rows of steps are in the order of the steps, whatever times those are.
template <typename T>
struct Direction {
  const RnnParams& p;
  const RnnGradientData<T>& data;
  const Extents e;
  int direction;
  bool reverse, accumulate;  // into dX
  void* product_work;
  int max_threads;
  ThreadPool* pool;
  T *x, *z, *a, *h, *c, *aside, *last, *dh, *dc, *work;
  PackedB<T> R, R_back, R_last, R_last_back;

  Direction(const RnnParams& params, const RnnGradientData<T>& operands, int d, T* memory, void* product_memory, int threads,
            ThreadPool* tp)
      : p(params),
        data(operands),
        e(params),
        direction(d),
        reverse(params.direction == RnnDirection::reverse || d == 1),
        accumulate(d == 1),
        product_work(product_memory),
        max_threads(threads),
        pool(tp) {
    const Parts<T> parts(p, e);
    x = memory + parts.x, z = memory + parts.z, a = memory + parts.a, h = memory + parts.h, c = memory + parts.c;
    aside = memory + parts.aside, last = memory + parts.last, dh = memory + parts.dh, dc = memory + parts.dc, work = memory + parts.work;
    const T* weights = data.R + direction * e.gates * e.hidden;
    R = pack_b(weights, e.hidden, e.first, e.hidden, true, memory + parts.r);
    R_back = pack_b(weights, e.first, e.hidden, e.hidden, false, memory + parts.r_back);
    if (p.kind != RnnKind::gru) return;
    weights += e.first * e.hidden;
    R_last = pack_b(weights, e.hidden, e.hidden, e.hidden, true, memory + parts.r_last);
    R_last_back = pack_b(weights, e.hidden, e.hidden, e.hidden, false, memory + parts.r_last_back);
  }

  const RnnActivation& activation(int i) const { return p.activations[direction][i]; }
  bool active(int64_t step, int64_t b) const { return step < length(b); }
  int64_t length(int64_t b) const { return data.sequence_lengths ? data.sequence_lengths[b] : p.steps; }
  int64_t time(int64_t step, int64_t b) const { return reverse ? length(b) - 1 - step : step; }
  int64_t x_place(int64_t t, int64_t b) const { return (p.batch_first ? b * p.steps + t : t * p.batch + b) * p.input; }
  int64_t y_place(int64_t t, int64_t b) const {
    const int64_t D = p.num_directions();
    return (p.batch_first ? (b * p.steps + t) * D + direction : (t * D + direction) * p.batch + b) * p.hidden;
  }
  int64_t state_place(int64_t b) const { return (p.batch_first ? b * p.num_directions() + direction : direction * p.batch + b) * p.hidden; }
  const T* bias(bool recurrent) const { return data.B + (2 * direction + (recurrent ? 1 : 0)) * e.gates; }

  void multiply(const Product<T>& product, const T* A, const T* B, T* C) const {
    gemm_batched<T>(product.shape, {}, A, B, C, {}, product_work, max_threads, pool);
  }
  void add_product(const T* A, int64_t lda, const PackedB<T>& B, T* C, int64_t ldc) const {
    gemm<T>(e.batch, {A, lda, 1}, B, C, ldc, {.residual = C, .residual_row = ldc}, pool);
  }
  void load_state(const T* from, T* state) const {
    for (int64_t b = 0; b < e.batch; ++b) {
      if (from)
        std::copy_n(from + state_place(b), e.hidden, state + b * e.hidden);
      else
        std::fill_n(state + b * e.hidden, e.hidden, T{0});
    }
  }
  void store_state(const T* state, T* to) const {
    for (int64_t b = 0; to && b < e.batch; ++b) std::copy_n(state + b * e.hidden, e.hidden, to + state_place(b));
  }

  void run() const {
    forward();
    load_state(data.dY_h, dh);
    if (p.kind == RnnKind::lstm) load_state(data.dY_c, dc);
    if (data.dP) std::fill_n(data.dP + direction * 3 * e.hidden, 3 * e.hidden, T{0});
    for (int64_t step = e.steps - 1; step >= 0; --step) back(step);
    store_state(dh, data.dinitial_h);
    if (p.kind == RnnKind::lstm) store_state(dc, data.dinitial_c);
    finish();
  }

  void forward() const {
    for (int64_t step = 0; step < e.steps; ++step) {
      for (int64_t b = 0; b < e.batch; ++b) {
        T* row = x + (step * e.batch + b) * e.input;
        if (active(step, b))
          std::copy_n(data.X + x_place(time(step, b), b), e.input, row);
        else
          std::fill_n(row, e.input, T{0});
      }
    }
    multiply(Product<T>::rows(e.rows, e.gates, e.input, true), x, data.W + direction * e.gates * e.input, z);
    if (data.B) add_bias();
    load_state(data.initial_h, h);
    if (p.kind == RnnKind::lstm) load_state(data.initial_c, c);
    for (int64_t step = 0; step < e.steps; ++step) {
      const int64_t state = step * e.batch * e.hidden, next = state + e.batch * e.hidden, gates = step * e.batch * e.gates;
      add_product(h + state, e.hidden, R, z + gates, e.gates);
      if (p.kind == RnnKind::gru) gru_products(step);
      for (int64_t b = 0; b < e.batch; ++b) {
        const int64_t at = b * e.hidden;
        const T* before = h + state + at;
        T* after = h + next + at;
        if (!active(step, b)) {
          std::copy_n(before, e.hidden, after);
          if (p.kind == RnnKind::lstm) std::copy_n(c + state + at, e.hidden, c + next + at);
        } else {
          T *pre = z + gates + b * e.gates, *post = a + gates + b * e.gates;
          switch (p.kind) {
            case RnnKind::rnn:
              activate(p, activation(0), pre, post, e.hidden);
              std::copy_n(post, e.hidden, after);
              break;
            case RnnKind::gru: gru_cell(pre, post, before, after); break;
            case RnnKind::lstm: lstm_cell(pre, post, c + state + at, c + next + at, after); break;
          }
        }
      }
    }
  }

  void add_bias() const {
    const T *input = bias(false), *recurrent = bias(true);
    // The reset gate multiplies the candidate's recurrent bias if it comes after the product.
    const int64_t both = p.kind == RnnKind::gru && p.linear_before_reset ? e.first : e.gates;
    for (int64_t row = 0; row < e.rows; ++row) {
      T* to = z + row * e.gates;
      for (int64_t j = 0; j < e.gates; ++j) to[j] += input[j];
      for (int64_t j = 0; j < both; ++j) to[j] += recurrent[j];
    }
  }

  // The first two gates, and the candidate's product: of the state times the reset gate, or to be multiplied by it.
  void gru_products(int64_t step) const {
    const int64_t H = e.hidden;
    const T* state = h + step * e.batch * H;
    T *pre = z + step * e.batch * e.gates, *post = a + step * e.batch * e.gates, *kept = aside + step * e.batch * H;
    for (int64_t b = 0; b < e.batch; ++b) {
      activate(p, activation(0), pre + b * e.gates, post + b * e.gates, 2 * H);
      T* row = kept + b * H;
      const T* reset = post + b * e.gates + H;
      for (int64_t j = 0; j < H; ++j) row[j] = !p.linear_before_reset ? reset[j] * state[b * H + j] : data.B ? bias(true)[2 * H + j] : T{0};
    }
    if (!p.linear_before_reset) return add_product(kept, H, R_last, pre + 2 * H, e.gates);
    add_product(state, H, R_last, kept, H);
    for (int64_t b = 0; b < e.batch; ++b)
      for (int64_t j = 0; j < H; ++j) pre[b * e.gates + 2 * H + j] += post[b * e.gates + H + j] * kept[b * H + j];
  }
  void gru_cell(const T* pre, T* post, const T* before, T* after) const {
    const int64_t H = e.hidden;
    activate(p, activation(1), pre + 2 * H, post + 2 * H, H);
    for (int64_t j = 0; j < H; ++j) after[j] = (1 - post[j]) * post[2 * H + j] + post[j] * before[j];
  }

  const T* peephole(int gate) const { return data.P + (direction * 3 + gate) * e.hidden; }
  // Gates in the order i, o, f, c; peepholes i, o, f.
  void lstm_cell(T* pre, T* post, const T* before, T* after, T* state) const {
    const int64_t H = e.hidden;
    for (int64_t j = 0; data.P && j < H; ++j) pre[j] += peephole(0)[j] * before[j], pre[2 * H + j] += peephole(2)[j] * before[j];
    activate(p, activation(0), pre, post, H);
    if (p.input_forget)
      for (int64_t j = 0; j < H; ++j) post[2 * H + j] = 1 - post[j];
    else
      activate(p, activation(0), pre + 2 * H, post + 2 * H, H);
    activate(p, activation(1), pre + 3 * H, post + 3 * H, H);
    for (int64_t j = 0; j < H; ++j) after[j] = post[2 * H + j] * before[j] + post[j] * post[3 * H + j];
    for (int64_t j = 0; data.P && j < H; ++j) pre[H + j] += peephole(1)[j] * after[j];
    activate(p, activation(0), pre + H, post + H, H);
    activate(p, activation(2), after, state, H);
    for (int64_t j = 0; j < H; ++j) state[j] *= post[H + j];
  }

  // From dh (and dc) behind a step to those before it; dz of the step takes z's place.
  void back(int64_t step) const {
    const int64_t H = e.hidden;
    T *pre = z + step * e.batch * e.gates, *post = a + step * e.batch * e.gates;
    const T *h_before = h + step * e.batch * H, *c_before = c + step * e.batch * H, *c_after = c_before + e.batch * H;
    for (int64_t b = 0; b < e.batch; ++b) {
      T *row = pre + b * e.gates, *d = dh + b * H;
      if (!active(step, b)) {
        std::fill_n(row, e.gates, T{0});
        if (p.kind == RnnKind::gru && p.linear_before_reset) std::fill_n(last + (step * e.batch + b) * H, H, T{0});
        continue;
      }
      if (data.dY) {
        const T* dy = data.dY + y_place(time(step, b), b);
        for (int64_t j = 0; j < H; ++j) d[j] += dy[j];
      }
      switch (p.kind) {
        case RnnKind::rnn: rnn_back(row, post + b * e.gates, d); break;
        case RnnKind::gru: gru_back(row, post + b * e.gates, h_before + b * H, aside + (step * e.batch + b) * H, d); break;
        case RnnKind::lstm: lstm_back(row, post + b * e.gates, c_before + b * H, c_after + b * H, d, dc + b * H); break;
      }
    }
    if (p.kind == RnnKind::gru) gru_back_products(step);
    add_product(pre, e.gates, R_back, dh, H);
  }

  void rnn_back(T* row, const T* post, T* d) const {
    for (int64_t j = 0; j < e.hidden; ++j) work[j] = d[j], d[j] = 0;
    times_slope(p, activation(0), row, post, work, e.hidden);
    std::copy_n(work, e.hidden, row);
  }

  // Of the gates but the reset gate of linear_before_reset = 0, which needs a product first.
  void gru_back(T* row, const T* post, const T* before, const T* kept, T* d) const {
    const int64_t H = e.hidden;
    for (int64_t j = 0; j < H; ++j) work[j] = d[j] * (1 - post[j]);
    times_slope(p, activation(1), row + 2 * H, post + 2 * H, work, H);
    std::copy_n(work, H, row + 2 * H);
    for (int64_t j = 0; j < H; ++j) work[j] = d[j] * (before[j] - post[2 * H + j]), d[j] *= post[j];
    times_slope(p, activation(0), row, post, work, H);
    std::copy_n(work, H, row);
    if (!p.linear_before_reset) return;
    for (int64_t j = 0; j < H; ++j) work[j] = row[2 * H + j] * kept[j];
    times_slope(p, activation(0), row + H, post + H, work, H);
    std::copy_n(work, H, row + H);
  }
  void gru_back_products(int64_t step) const {
    const int64_t H = e.hidden;
    T *pre = z + step * e.batch * e.gates, *post = a + step * e.batch * e.gates;
    if (p.linear_before_reset) {
      T* d = last + step * e.batch * H;
      for (int64_t b = 0; b < e.batch; ++b)
        for (int64_t j = 0; active(step, b) && j < H; ++j) d[b * H + j] = pre[b * e.gates + 2 * H + j] * post[b * e.gates + H + j];
      return add_product(d, H, R_last_back, dh, H);
    }
    // The gradient of reset * h.
    gemm<T>(e.batch, {pre + 2 * H, e.gates, 1}, R_last_back, work, H, {}, pool);
    const T* before = h + step * e.batch * H;
    for (int64_t b = 0; b < e.batch; ++b) {
      if (!active(step, b)) continue;
      T *d = work + b * H, *reset = post + b * e.gates + H;
      for (int64_t j = 0; j < H; ++j) dh[b * H + j] += d[j] * reset[j], d[j] *= before[b * H + j];
      times_slope(p, activation(0), pre + b * e.gates + H, reset, d, H);
      std::copy_n(d, H, pre + b * e.gates + H);
    }
  }

  void lstm_back(T* row, const T* post, const T* before, const T* after, T* d, T* dcell) const {
    const int64_t H = e.hidden;
    T *squashed = work, *flow = work + H;
    activate(p, activation(2), after, squashed, H);
    for (int64_t j = 0; j < H; ++j) flow[j] = d[j] * post[H + j];
    times_slope(p, activation(2), after, squashed, flow, H);
    for (int64_t j = 0; j < H; ++j) dcell[j] += flow[j], flow[j] = d[j] * squashed[j], d[j] = 0;
    times_slope(p, activation(0), row + H, post + H, flow, H);
    std::copy_n(flow, H, row + H);
    for (int64_t j = 0; data.P && j < H; ++j) dcell[j] += flow[j] * peephole(1)[j];
    // The input and the forget gate, then the candidate.
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
    T* dp = data.dP + direction * 3 * H;
    for (int64_t j = 0; j < H; ++j)
      dp[j] += row[j] * before[j], dp[H + j] += row[H + j] * after[j], dp[2 * H + j] += row[2 * H + j] * before[j];
  }

  // Gradients of the weights and of X, from all steps at once.
  void finish() const {
    const int64_t H = e.hidden;
    const bool gru = p.kind == RnnKind::gru, apart = gru && p.linear_before_reset;
    if (data.dW) multiply(Product<T>::columns(e.gates, e.input, e.rows, e.gates, e.input), z, x, data.dW + direction * e.gates * e.input);
    if (data.dR) {
      T* dR = data.dR + direction * e.gates * H;
      multiply(Product<T>::columns(e.first, H, e.rows, e.gates, H), z, h, dR);
      if (apart) multiply(Product<T>::columns(H, H, e.rows, H, H), last, h, dR + e.first * H);
      if (gru && !apart) multiply(Product<T>::columns(H, H, e.rows, e.gates, H), z + 2 * H, aside, dR + e.first * H);
    }
    if (data.dB) {
      T *input = data.dB + 2 * direction * e.gates, *recurrent = input + e.gates;
      std::fill_n(input, 2 * e.gates, T{0});
      for (int64_t row = 0; row < e.rows; ++row)
        for (int64_t j = 0; j < e.gates; ++j) input[j] += z[row * e.gates + j];
      std::copy_n(input, apart ? e.first : e.gates, recurrent);
      for (int64_t row = 0; apart && row < e.rows; ++row)
        for (int64_t j = 0; j < H; ++j) recurrent[e.first + j] += last[row * H + j];
    }
    if (!data.dX) return;
    multiply(Product<T>::rows(e.rows, e.input, e.gates, false), z, data.W + direction * e.gates * e.input, x);
    if (!accumulate) std::fill_n(data.dX, e.rows * e.input, T{0});
    for (int64_t step = 0; step < e.steps; ++step) {
      for (int64_t b = 0; b < e.batch; ++b) {
        if (!active(step, b)) continue;
        const T* from = x + (step * e.batch + b) * e.input;
        T* to = data.dX + x_place(time(step, b), b);
        for (int64_t j = 0; j < e.input; ++j) to[j] += from[j];
      }
    }
  }
};

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
  const Extents e(p);
  return static_cast<size_t>(Parts<T>(p, e).size) * sizeof(T) + product_scratch<T>(e, max_threads);
}

template <typename T>
void rnn_gradient(const RnnParams& p, const RnnGradientData<T>& data, void* scratch, int max_threads, ThreadPool* pool) {
  for (int64_t b = 0; data.sequence_lengths && b < p.batch; ++b) {
    if (data.sequence_lengths[b] < 0 || data.sequence_lengths[b] > p.steps)
      throw Error(ErrorCode::invalid_argument,
                  "sequence length " + std::to_string(data.sequence_lengths[b]) + " is not in [0, " + std::to_string(p.steps) + "]");
  }
  T* memory = static_cast<T*>(scratch);
  void* product_work = memory + Parts<T>(p, Extents(p)).size;
  for (int d = 0; d < p.num_directions(); ++d) Direction<T>(p, data, d, memory, product_work, max_threads, pool).run();
}

template size_t rnn_gradient_scratch_bytes<float>(const RnnParams&, int);
template size_t rnn_gradient_scratch_bytes<double>(const RnnParams&, int);
template void rnn_gradient(const RnnParams&, const RnnGradientData<float>&, void*, int, ThreadPool*);
template void rnn_gradient(const RnnParams&, const RnnGradientData<double>&, void*, int, ThreadPool*);

}  // namespace treadle::kernels
