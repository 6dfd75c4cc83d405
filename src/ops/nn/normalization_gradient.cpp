// Implements gradients of normalizations: BatchNormalizationGrad of the treadle domain, and the gradient rules.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/infer.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/nn/normalization.h"
#include "ops/nn/second_normalization.h"
#include "treadle/error.h"

namespace treadle::ops {

BatchPlanes BatchPlanes::bind_gradient(const BindContext& c) {
  const Shape& x = c.shape(1);
  if (x.rank() < 1 || !(c.shape(0) == x) || c.num_elements(2) != of(x).channels)
    throw Error(ErrorCode::invalid_argument, fmt::format("dY {}, X {} and scale {} are of no batch normalisation", to_string(c.shape(0)),
                                                         to_string(x), to_string(c.shape(2))));
  return of(x);
}

namespace {

constexpr TypeSet kTypes{DType::float32, DType::float64};

void infer_batch_norm_grad(InferContext& c) {
  c.set_output(0, c.input(1));
  c.set_output(1, c.input(2));
  c.set_output(2, c.input(2));
}

// Let xhat = (x - mean) / std, with the mean and the deviation over the batch. The gradients are:
//   dB = sum dy, dscale = sum dy xhat, dx = scale / std (dy - dB / n - xhat dscale / n)
template <typename T>
struct BatchNormalizationGrad : BatchPlanes {
  double epsilon;

  static BatchNormalizationGrad bind(BindContext& c) {
    return {BatchPlanes::bind_gradient(c), static_cast<double>(c.get_float("epsilon", 1e-5F))};
  }

  template <typename Fn>
  void for_rows(int64_t channel, Fn&& fn) const {
    for (int64_t n = 0; n < N; ++n) fn((n * channels + channel) * inner);
  }

  void run(RunContext& c) const {
    const T *dy = c.in<T>(0), *x = c.in<T>(1), *scale = c.in<T>(2);
    T *dx = c.out<T>(0), *dscale = c.out<T>(1), *db = c.out<T>(2);
    const double count = static_cast<double>(N * inner);
    const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, N * inner));
    parallel_for(c.pool(), channels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t channel = begin; channel < end; ++channel) {
        double sum = 0, squares = 0, sum_dy = 0, dot = 0;
        for_rows(channel, [&](int64_t row) {
          for (int64_t i = row; i < row + inner; ++i) sum += static_cast<double>(x[i]);
        });
        const double mean = sum / count;
        for_rows(channel, [&](int64_t row) {
          for (int64_t i = row; i < row + inner; ++i) {
            const double centered = static_cast<double>(x[i]) - mean, d = static_cast<double>(dy[i]);
            squares += centered * centered;
            sum_dy += d;
            dot += d * centered;
          }
        });
        const double inverse = 1 / std::sqrt(squares / count + epsilon);
        if (dscale) dscale[channel] = static_cast<T>(dot * inverse);
        if (db) db[channel] = static_cast<T>(sum_dy);
        if (!dx) continue;
        const T shift = static_cast<T>(sum_dy / count), slope = static_cast<T>(dot * inverse * inverse / count),
                center = static_cast<T>(mean);
        const T factor = static_cast<T>(static_cast<double>(scale[channel]) * inverse);
        for_rows(channel, [&](int64_t row) {
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = row; i < row + inner; ++i) dx[i] = factor * (dy[i] - shift - (x[i] - center) * slope);
        });
      }
    });
  }
};

/// Differentiates BatchNormalizationGrad, for second derivatives.
std::vector<ValueId> batch_norm_grad_gradient(GradientContext& g) {
  const int rank = rank_of(g, g.input(1));
  std::vector<int64_t> axes{0};
  for (int axis = 2; axis < rank; ++axis) axes.push_back(axis);
  return gradients::second_normalization(g, axes, /*centred=*/true, per_channel(g, g.input(2), rank));
}

}  // namespace

std::vector<OpDef> normalization_gradient_ops() {
  return {{.name = "BatchNormalizationGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTypes, "T"}, {"X", kTypes, "T"}, {"scale", kTypes, "T"}},
           .outputs = {{"dX", kTypes, "T"}, {"dscale", kTypes, "T", Presence::optional}, {"dB", kTypes, "T", Presence::optional}},
           .attributes = {{"epsilon", 1e-5F}},
           .infer = infer_batch_norm_grad,
           .cost = elementwise_cost<12>,
           .alias = {may_reuse(0, 0)},
           .kernels = typed<BatchNormalizationGrad, float, double>(),
           .gradient = batch_norm_grad_gradient,
           .channels_last = {ChannelsLast::How::statistics_gradient, "NhwcBatchNormalizationGrad"}}};
}

}  // namespace treadle::ops
