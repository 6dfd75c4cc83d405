#include "kernels/rnn/cell.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rnn/cell.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/elementwise/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

template <class D>
HWY_INLINE void lstm_lanes(D d, const float* gates, int64_t hidden, int64_t j, float* c, float* h) {
  const auto i = sigmoid(d, hn::LoadU(d, gates + j));
  const auto o = sigmoid(d, hn::LoadU(d, gates + hidden + j));
  const auto f = sigmoid(d, hn::LoadU(d, gates + 2 * hidden + j));
  const auto g = tanh(d, hn::LoadU(d, gates + 3 * hidden + j));
  const auto next = hn::MulAdd(f, hn::LoadU(d, c + j), hn::Mul(i, g));
  hn::StoreU(next, d, c + j);
  hn::StoreU(hn::Mul(o, tanh(d, next)), d, h + j);
}

template <class D>
HWY_INLINE void lstm_lanes_kept(D d, const float* gates, const float* before, int64_t hidden, int64_t j, float* values, float* c,
                                float* h) {
  const auto i = sigmoid(d, hn::LoadU(d, gates + j));
  const auto o = sigmoid(d, hn::LoadU(d, gates + hidden + j));
  const auto f = sigmoid(d, hn::LoadU(d, gates + 2 * hidden + j));
  const auto g = tanh(d, hn::LoadU(d, gates + 3 * hidden + j));
  const auto next = hn::MulAdd(f, hn::LoadU(d, before + j), hn::Mul(i, g));
  hn::StoreU(i, d, values + j);
  hn::StoreU(o, d, values + hidden + j);
  hn::StoreU(f, d, values + 2 * hidden + j);
  hn::StoreU(g, d, values + 3 * hidden + j);
  hn::StoreU(next, d, c + j);
  hn::StoreU(hn::Mul(o, tanh(d, next)), d, h + j);
}

template <class D>
HWY_INLINE void lstm_lanes_back(D d, const float* values, const float* before, const float* after, int64_t hidden, int64_t j, float* dh,
                                float* dc, float* dgates) {
  const auto one = hn::Set(d, 1.0F), flow = hn::LoadU(d, dh + j), squashed = tanh(d, hn::LoadU(d, after + j));
  const auto i = hn::LoadU(d, values + j), o = hn::LoadU(d, values + hidden + j), f = hn::LoadU(d, values + 2 * hidden + j),
             g = hn::LoadU(d, values + 3 * hidden + j);
  auto sigmoid_slope = [&](auto y) HWY_ATTR { return hn::Mul(y, hn::Sub(one, y)); };
  auto tanh_slope = [&](auto y) HWY_ATTR { return hn::NegMulAdd(y, y, one); };
  const auto cell = hn::MulAdd(hn::Mul(flow, o), tanh_slope(squashed), hn::LoadU(d, dc + j));
  hn::StoreU(hn::Mul(hn::Mul(cell, g), sigmoid_slope(i)), d, dgates + j);
  hn::StoreU(hn::Mul(hn::Mul(flow, squashed), sigmoid_slope(o)), d, dgates + hidden + j);
  hn::StoreU(hn::Mul(hn::Mul(cell, hn::LoadU(d, before + j)), sigmoid_slope(f)), d, dgates + 2 * hidden + j);
  hn::StoreU(hn::Mul(hn::Mul(cell, i), tanh_slope(g)), d, dgates + 3 * hidden + j);
  hn::StoreU(hn::Mul(cell, f), d, dc + j);
  hn::StoreU(hn::Zero(d), d, dh + j);
}

// Sums the columns of kVectors vectors that begin at `from`.
template <int kVectors, class D>
HWY_INLINE void sum_block(D d, int64_t rows, int64_t ld, const float* from, float* sums) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<D> sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (int64_t row = 0; row < rows; ++row)
    for (int v = 0; v < kVectors; ++v) sum[v] = hn::Add(sum[v], hn::LoadU(d, from + row * ld + v * lanes));
  for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, sums + v * lanes);
}

}  // namespace

void lstm_gradient_loop(int64_t hidden, const float* values, const float* before, const float* after, float* dh, float* dc, float* dgates) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + lanes <= hidden; j += lanes) lstm_lanes_back(d, values, before, after, hidden, j, dh, dc, dgates);
  const hn::CappedTag<float, 1> one;
  for (; j < hidden; ++j) lstm_lanes_back(one, values, before, after, hidden, j, dh, dc, dgates);
}

void sum_columns_loop(int64_t rows, int64_t n, const float* matrix, float* sums) {
  constexpr int kVectors = 4;
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + kVectors * lanes <= n; j += kVectors * lanes) sum_block<kVectors>(d, rows, n, matrix + j, sums + j);
  for (; j + lanes <= n; j += lanes) sum_block<1>(d, rows, n, matrix + j, sums + j);
  const hn::CappedTag<float, 1> one;
  for (; j < n; ++j) sum_block<1>(one, rows, n, matrix + j, sums + j);
}

void lstm_keeping_loop(int64_t hidden, const float* gates, const float* before, float* values, float* c, float* h) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + lanes <= hidden; j += lanes) lstm_lanes_kept(d, gates, before, hidden, j, values, c, h);
  const hn::CappedTag<float, 1> one;
  for (; j < hidden; ++j) lstm_lanes_kept(one, gates, before, hidden, j, values, c, h);
}

void lstm_loop(int64_t hidden, const float* gates, float* c, float* h) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + lanes <= hidden; j += lanes) lstm_lanes(d, gates, hidden, j, c, h);
  const hn::CappedTag<float, 1> one;
  for (; j < hidden; ++j) lstm_lanes(one, gates, hidden, j, c, h);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(lstm_loop);
HWY_EXPORT(lstm_keeping_loop);
HWY_EXPORT(lstm_gradient_loop);
HWY_EXPORT(sum_columns_loop);

void lstm_cell_plain(int64_t hidden, const float* gates, float* c, float* h) { HWY_DYNAMIC_DISPATCH(lstm_loop)(hidden, gates, c, h); }

void lstm_cell_keeping(int64_t hidden, const float* gates, const float* before, float* values, float* c, float* h) {
  HWY_DYNAMIC_DISPATCH(lstm_keeping_loop)(hidden, gates, before, values, c, h);
}

void lstm_cell_gradient(int64_t hidden, const float* values, const float* before, const float* after, float* dh, float* dc, float* dgates) {
  HWY_DYNAMIC_DISPATCH(lstm_gradient_loop)(hidden, values, before, after, dh, dc, dgates);
}

void sum_columns(int64_t rows, int64_t n, const float* matrix, float* sums) {
  HWY_DYNAMIC_DISPATCH(sum_columns_loop)(rows, n, matrix, sums);
}

void activate_gate(const RnnParams& params, const RnnActivation& activation, float* values, int64_t n) {
  if (params.clip > 0) unary_f32(Unary::clip, -params.clip, params.clip, values, values, n);
  unary_f32(activation.function, activation.a, activation.b, values, values, n);
}

void lstm_cell(const RnnParams& params, const RnnActivation* activations, const float* peephole, float* gates, float* c, float* h,
               float* work) {
  const int64_t H = params.hidden;
  float *i = gates, *o = gates + H, *f = gates + 2 * H, *g = gates + 3 * H;
  if (peephole != nullptr) {
    for (int64_t j = 0; j < H; ++j) {
      i[j] += peephole[j] * c[j];
      f[j] += peephole[2 * H + j] * c[j];
    }
  }
  activate_gate(params, activations[0], i, H);
  if (params.input_forget) {
    for (int64_t j = 0; j < H; ++j) f[j] = 1 - i[j];
  } else {
    activate_gate(params, activations[0], f, H);
  }
  activate_gate(params, activations[1], g, H);
  for (int64_t j = 0; j < H; ++j) c[j] = f[j] * c[j] + i[j] * g[j];
  if (peephole != nullptr) {
    for (int64_t j = 0; j < H; ++j) o[j] += peephole[H + j] * c[j];
  }
  activate_gate(params, activations[0], o, H);
  for (int64_t j = 0; j < H; ++j) work[j] = c[j];
  activate_gate(params, activations[2], work, H);
  for (int64_t j = 0; j < H; ++j) h[j] = o[j] * work[j];
}

}  // namespace treadle::kernels
#endif
