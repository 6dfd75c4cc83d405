// Implements NegativeLogLikelihoodLossGrad of the treadle domain. SoftmaxCrossEntropyLoss is decomposed into LogSoftmax and this loss.
#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "ops/given_shape.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/loss.h"
#include "treadle/error.h"

namespace treadle::ops {

LossPlan LossPlan::bind_gradient(const BindContext& c) {
  const Shape& shape = c.output_shape(0);
  const LossPlan plan = shape.rank() < 2 ? LossPlan{} : of(c, shape, 3);
  const int64_t gradients = plan.reduction == Reduction::none ? plan.num_targets() : 1;
  if (shape.rank() < 2 || c.num_elements(1) != plan.num_targets() || c.num_elements(0) != gradients ||
      (plan.weighted && c.num_elements(3) != plan.classes))
    throw Error(ErrorCode::invalid_argument, fmt::format("the gradient {} and the target {} are of no loss over {}", to_string(c.shape(0)),
                                                         to_string(c.shape(1)), to_string(shape)));
  return plan;
}

namespace {

constexpr TypeSet kTypes{DType::float32, DType::float64};

// Computes d loss / d input[n, target, p] = -weight; for "mean", divided by the sum of the weights. Other classes get 0.
template <typename T>
struct NegativeLogLikelihoodLossGrad : LossPlan {
  static NegativeLogLikelihoodLossGrad bind(BindContext& c) { return {LossPlan::bind_gradient(c)}; }

  void run(RunContext& c) const {
    if (wide_target)
      run_with<int64_t>(c);
    else
      run_with<int32_t>(c);
  }

  template <typename Index>
  void run_with(RunContext& c) const {
    const T *dy = c.in<T>(0), *weights = c.in<T>(3);
    const Index* target = c.in<Index>(1);
    T* dx = c.out<T>(0);
    std::fill_n(dx, batch * classes * positions, T{0});
    const bool each = reduction == Reduction::none;
    double total = 0;
    for (int64_t i = 0; i < batch * positions; ++i) {
      const auto label = static_cast<int64_t>(target[i]);
      if (ignored(label)) continue;
      if (label < 0 || label >= classes)
        throw Error(ErrorCode::invalid_argument, fmt::format("the target {} is outside [0, {})", label, classes));
      total += weights ? static_cast<double>(weights[label]) : 1;
    }
    const T scale = reduction == Reduction::mean ? static_cast<T>(-1 / total) : T{-1};
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t p = 0; p < positions; ++p) {
        const int64_t i = n * positions + p;
        const auto label = static_cast<int64_t>(target[i]);
        if (!ignored(label)) dx[(n * classes + label) * positions + p] = dy[each ? i : 0] * scale * (weights ? weights[label] : T{1});
      }
    }
  }
};

/// The loss is linear in its input. So the gradient of this operator with respect to dY is the loss, applied to the incoming gradient.
std::vector<ValueId> loss_grad_gradient(GradientContext& g) {
  std::vector<ValueId> inputs{g.grad_output(0), g.input(1)};
  if (g.input(3) != kNoValue) inputs.push_back(g.input(3));
  const Attributes attributes = g.attributes();
  return {g.op("NegativeLogLikelihoodLoss", std::move(inputs), attributes)};
}

Cost cost(const ShapeContext& c) { return {static_cast<double>(c.num_elements(1)), 2 * c.size_bytes(1)}; }

}  // namespace

std::vector<OpDef> loss_gradient_ops() {
  return {{.name = "NegativeLogLikelihoodLossGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dloss", kTypes, "T"}, {"target", kInt32Or64}, {"shape", kInt64}, {"weight", kTypes, "T", Presence::optional}},
           .outputs = {{"dinput", kTypes, "T"}},
           .attributes = {{"ignore_index"}, {"reduction", "mean"}},
           .infer = infer_given_shape<2>,
           .cost = cost,
           .kernels = typed<NegativeLogLikelihoodLossGrad, float, double>(),
           .gradient = loss_grad_gradient,
           .value_inputs = {2}}};
}

}  // namespace treadle::ops
