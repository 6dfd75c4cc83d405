#include "train/graph/loss_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "passes/precision.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

constexpr double kInitScale = 65536, kGrowthFactor = 2, kBackoffFactor = 0.5;
constexpr int64_t kGrowthInterval = 2000;
// Bounds of the scale s: both s and 1 / s must be normal float32 numbers.
constexpr double kLeast = 1 / 0x1p126, kMost = 0x1p126;

ValueId scale_of(Graph& graph) {
  const ValueId known = graph.find_value(kLossScale);
  return known != kNoValue ? known : graph.add_input(kLossScale, Type::tensor(DType::float32, SymbolicShape{}));
}

}  // namespace

bool scales_loss(const TrainerOptions& options) {
  return passes::PrecisionRules::parse(options.session.precision).names(ops::Precision::float16);
}

std::vector<std::pair<std::string, std::string>> loss_scaling_settings(const TrainerOptions& o) {
  const LossScaling& s = o.loss_scaling;
  return {{"init_scale", fmt::format("{}", s.init_scale.value_or(kInitScale))},
          {"growth_factor", fmt::format("{}", s.growth_factor.value_or(kGrowthFactor))},
          {"backoff_factor", fmt::format("{}", s.backoff_factor.value_or(kBackoffFactor))},
          {"growth_interval", std::to_string(s.growth_interval.value_or(kGrowthInterval))}};
}

LossScaler::LossScaler(const TrainerOptions& options)
    : growth_factor_(options.loss_scaling.growth_factor.value_or(kGrowthFactor)),
      backoff_factor_(options.loss_scaling.backoff_factor.value_or(kBackoffFactor)),
      growth_interval_(options.loss_scaling.growth_interval.value_or(kGrowthInterval)),
      scalar_(Tensor::scalar(1.0F)) {
  set_state({.scale = options.loss_scaling.init_scale.value_or(kInitScale)});
}

ValueId LossScaler::head(Graph& graph, ValueId loss) const {
  const Type& type = graph.type(loss);
  // Does nothing for an invalid loss, because autodiff reports it.
  if (!type.is_static() || type.static_shape().num_elements() != 1 || type.dtype != DType::float32) return kNoValue;
  const Shape shape = type.static_shape();
  const ValueId scale = scale_of(graph);
  if (shape.rank() == 0) return scale;
  const ValueId ones = graph.add_constant(graph.unique_name("loss_scale/shape"),
                                          Tensor::vector<int64_t>(std::vector<int64_t>(static_cast<size_t>(shape.rank()), 1)));
  return appended(graph, {.op_type = "Reshape", .inputs = {scale, ones}, .name = "loss_scale/shaped"});
}

void LossScaler::unscale(Graph& graph, ValueId loss, std::span<ParameterGradient> gradients, bool reports) const {
  for (ParameterGradient& gradient : gradients)
    gradient.value = appended(graph, {.op_type = "UnscaleGradient",
                                      .inputs = {gradient.value, scale_of(graph), loss},
                                      .attributes = {{"report", reports ? report_.id() : int64_t{0}}},
                                      .domain = "treadle",
                                      .name = graph.value(gradient.value).name + "/unscaled"});
}

void LossScaler::take_reports(Graph& graph) const {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    Node& node = graph.node(id);
    if (node.is("UnscaleGradient", "treadle") && node.attributes.get_int("report", 0) != 0) node.attributes.set("report", report_.id());
  }
}

std::optional<double> LossScaler::skipped() {
  const std::optional<float> loss = report_.loss();
  if (!loss) return std::nullopt;
  set_state({.scale = std::max(kLeast, state_.scale * backoff_factor_), .growth_tracker = 0, .num_skipped = state_.num_skipped + 1});
  return static_cast<double>(*loss);
}

void LossScaler::succeeded(bool updated) {
  if (!updated) return;
  LossScale next = state_;
  if (++next.growth_tracker == growth_interval_) {
    next.growth_tracker = 0;
    if (next.scale * growth_factor_ <= kMost) next.scale *= growth_factor_;
  }
  set_state(next);
}

void LossScaler::set_state(const LossScale& state) {
  if (!(state.scale >= kLeast && state.scale <= kMost) || state.growth_tracker < 0 || state.growth_tracker >= growth_interval_)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a loss scale of {} after {} updates since it moved, of {}: a trainer is never there", state.scale,
                            state.growth_tracker, growth_interval_));
  state_ = state;
  *scalar_.data<float>() = static_cast<float>(state_.scale);
}

}  // namespace treadle::train
