// Gradients of normalisations: BatchNormalizationGrad of the treadle domain, and gradient rules.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/infer.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/nn/second_normalization.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kTypes{DType::float32, DType::float64};

void infer_batch_norm_grad(InferContext& c) {
  c.set_output(0, c.input(1));
  c.set_output(1, c.input(2));
  c.set_output(2, c.input(2));
}

// With xhat = (x - mean) / std over the batch:
//   dB = sum dy, dscale = sum dy xhat, dx = scale / std (dy - dB / n - xhat dscale / n)
template <typename T>
struct BatchNormalizationGrad {
  int64_t N, channels, inner;
  double epsilon;

  static BatchNormalizationGrad bind(BindContext& c) {
    const Shape& x = c.shape(1);
    if (x.rank() < 1 || !(c.shape(0) == x) || c.num_elements(2) != (x.rank() == 1 ? 1 : x[1]))
      throw Error(ErrorCode::invalid_argument, fmt::format("dY {}, X {} and scale {} are of no batch normalisation", to_string(c.shape(0)),
                                                           to_string(x), to_string(c.shape(2))));
    return {x[0], x.rank() == 1 ? 1 : x[1], x.rank() < 3 ? 1 : x.product(2, x.rank()), static_cast<double>(c.get_float("epsilon", 1e-5F))};
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
            const double centred = static_cast<double>(x[i]) - mean, d = static_cast<double>(dy[i]);
            squares += centred * centred;
            sum_dy += d;
            dot += d * centred;
          }
        });
        const double inverse = 1 / std::sqrt(squares / count + epsilon);
        if (dscale) dscale[channel] = static_cast<T>(dot * inverse);
        if (db) db[channel] = static_cast<T>(sum_dy);
        if (!dx) continue;
        const T shift = static_cast<T>(sum_dy / count), slope = static_cast<T>(dot * inverse * inverse / count),
                centre = static_cast<T>(mean);
        const T factor = static_cast<T>(static_cast<double>(scale[channel]) * inverse);
        for_rows(channel, [&](int64_t row) {
          TREADLE_ELEMENTWISE_LOOP
          for (int64_t i = row; i < row + inner; ++i) dx[i] = factor * (dy[i] - shift - (x[i] - centre) * slope);
        });
      }
    });
  }
};

/// Second derivatives.
std::vector<ValueId> batch_norm_grad_gradient(GradientContext& g) {
  const int rank = rank_of(g, g.input(1));
  std::vector<int64_t> axes{0};
  for (int axis = 2; axis < rank; ++axis) axes.push_back(axis);
  return gradients::second_normalization(g, axes, /*centred=*/true, per_channel(g, g.input(2), rank));
}

}  // namespace

namespace gradients {

Result batch_normalization(GradientContext& g) {
  const ValueId x = g.input(0), scale = g.input(1), dy = g.grad_output(0);
  const float epsilon = g.attributes().get_float("epsilon", 1e-5F);
  if (dy == kNoValue) return {};
  if (g.attributes().get_int("training_mode", 0) != 0)
    return g.op_n("BatchNormalizationGrad", {dy, x, scale}, 3, {{"epsilon", epsilon}}, "treadle");
  // Running statistics are constants here.
  const int rank = rank_of(g, x);
  const ValueId deviation = g.op("Sqrt", {g.add(g.input(4), g.scalar(static_cast<double>(epsilon), g.input(4)))});
  std::vector<int64_t> axes{0};
  for (int axis = 2; axis < rank; ++axis) axes.push_back(axis);
  const ValueId centred = g.sub(x, per_channel(g, g.input(3), rank));
  return {g.mul(dy, per_channel(g, g.div(scale, deviation), rank)), g.div(g.reduce_sum(g.mul(dy, centred), axes, false), deviation),
          g.reduce_sum(dy, axes, false)};
}

// With xhat = (x - mean) / std of a row and d = dy scale: dx = (d - mean(d) - xhat mean(d xhat)) / std. For the outputs Mean and InvStdDev,
// over n elements: d mean / dx = 1 / n, d (1 / std) / dx = -xhat / (n std^2).
Result layer_normalization(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), scale = widened(g, g.input(1)), bias = g.input(2), dy = widened(g, g.grad_output(0));
  Result result = norm_of_rows(g, "LayerNormalizationGrad", dy, x, scale, bias);
  const bool shows_statistics = g.grad_output(1) != kNoValue || g.grad_output(2) != kNoValue;
  if (!result.empty() && !shows_statistics) return narrowed(g, std::move(result));
  const int rank = rank_of(g, x);
  std::vector<int64_t> axes;
  for (int axis = normalise_axis(g.attributes().get_int("axis", -1), rank); axis < rank; ++axis) axes.push_back(axis);
  auto mean = [&](ValueId value) { return g.op("ReduceMean", {value, g.ints(axes)}); };
  const ValueId centred = g.sub(x, mean(x));
  const ValueId epsilon = g.scalar(static_cast<double>(g.attributes().get_float("epsilon", 1e-5F)), x);
  const ValueId deviation = g.op("Sqrt", {g.add(mean(g.mul(centred, centred)), epsilon)});
  const ValueId normalised = g.div(centred, deviation);
  if (result.empty() && dy != kNoValue) {
    result.resize(3, kNoValue);
    const ValueId d = g.mul(dy, scale);
    result[0] = g.div(g.sub(g.sub(d, mean(d)), g.mul(normalised, mean(g.mul(d, normalised)))), deviation);
    result[1] = g.unbroadcast(g.mul(dy, normalised), scale);
    if (bias != kNoValue) result[2] = g.unbroadcast(dy, bias);
  }
  result.resize(3, kNoValue);
  for (size_t i : {1, 2}) {
    ValueId flow = g.grad_output(i);
    if (flow == kNoValue) continue;
    flow = g.op("Cast", {flow}, {{"to", static_cast<int64_t>(g.type(x).dtype)}});
    const ValueId length = elements_per_element(g, x, flow);
    ValueId spread = expand_like(g, g.div(flow, length), x);
    if (i == 2) spread = g.neg(g.div(g.mul(spread, normalised), g.mul(deviation, deviation)));
    result[0] = result[0] == kNoValue ? spread : g.add(result[0], spread);
  }
  return narrowed(g, std::move(result));
}

}  // namespace gradients

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
