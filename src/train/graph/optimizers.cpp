#include "train/graph/optimizers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "core/base/nearest.h"
#include "core/base/pattern.h"
#include "graph/infer.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

// The default hyperparameters of an optimizer; nullopt: the optimizer has no such hyperparameter.
struct Numbers {
  std::optional<double> weight_decay = 0, momentum = std::nullopt, beta1 = std::nullopt, beta2 = std::nullopt, epsilon = std::nullopt,
                        smoothing = std::nullopt;
};
struct Known {
  std::string_view name;
  Optimizer optimizer;
  std::string_view op, domain;
  std::vector<std::string> state;
  Numbers usual;
};
const std::vector<Known>& all_known() {
  static const std::vector<Known> known = {
      {"sgd", Optimizer::sgd, "Momentum", "ai.onnx.preview.training", {"momentum"}, {.momentum = 0}},
      {"adam", Optimizer::adam, "AdamUpdate", "treadle", {"mean", "squares"}, {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
      {"adamw",
       Optimizer::adamw,
       "AdamUpdate",
       "treadle",
       {"mean", "squares"},
       {.weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
      {"adagrad", Optimizer::adagrad, "Adagrad", "ai.onnx.preview.training", {"squares"}, {.epsilon = 1e-10}},
      {"rmsprop",
       Optimizer::rmsprop,
       "RMSPropUpdate",
       "treadle",
       {"squares", "momentum"},
       {.momentum = 0, .epsilon = 1e-8, .smoothing = 0.99}},
      {"lion", Optimizer::lion, "LionUpdate", "treadle", {"momentum"}, {.beta1 = 0.9, .beta2 = 0.99}},
      {"lamb", Optimizer::lamb, "LambUpdate", "treadle", {"mean", "squares"}, {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6}},
  };
  return known;
}
const Known& known(Optimizer optimizer) {
  for (const Known& each : all_known())
    if (each.optimizer == optimizer) return each;
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no optimizer {}", static_cast<int>(optimizer)));
}

constexpr std::pair<std::string_view, Schedule::Kind> kSchedules[] = {{"constant", Schedule::Kind::constant},
                                                                      {"step", Schedule::Kind::step},
                                                                      {"cosine", Schedule::Kind::cosine},
                                                                      {"linear", Schedule::Kind::linear},
                                                                      {"one_cycle", Schedule::Kind::one_cycle}};

template <typename Rows>
std::vector<std::string> names_in(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) {
    if constexpr (requires { row.name; })
      names.emplace_back(row.name);
    else
      names.emplace_back(row.first);
  }
  return names;
}

[[noreturn]] void throw_unknown(std::string_view what, std::string_view name, const std::vector<std::string>& names) {
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no {} \"{}\"; the nearest: {}; all: {}", what, name,
                                                       nearest_names(name, names), fmt::join(names, ", ")));
}

ValueId number(Graph& graph, const std::string& name, double value) {
  return graph.add_constant(graph.unique_name(name), Tensor::scalar(static_cast<float>(value)));
}

const ParameterGroup* group_of(const TrainerOptions& options, const std::string& parameter) {
  for (const ParameterGroup& group : options.groups)
    if (matches_any(group.parameters, parameter)) return &group;
  return nullptr;
}

// Describes a hyperparameter: its name, the option that sets it, and the member of Numbers that has its default.
struct Number {
  const char* name;
  std::optional<double> TrainerOptions::*given;
  std::optional<double> Numbers::*usual;
};
constexpr Number kWeightDecay{"weight_decay", &TrainerOptions::weight_decay, &Numbers::weight_decay};
constexpr Number kMomentum{"momentum", &TrainerOptions::momentum, &Numbers::momentum};
constexpr Number kBeta1{"beta1", &TrainerOptions::beta1, &Numbers::beta1}, kBeta2{"beta2", &TrainerOptions::beta2, &Numbers::beta2};
constexpr Number kEpsilon{"epsilon", &TrainerOptions::epsilon, &Numbers::epsilon};
constexpr Number kSmoothing{"smoothing", &TrainerOptions::smoothing, &Numbers::smoothing};

double number_of(const TrainerOptions& options, const Number& number) {
  return (options.*number.given).value_or((known(options.optimizer).usual.*number.usual).value_or(0));
}

Attributes attributes_of(const TrainerOptions& options, std::optional<double> groups_decay) {
  Attributes attributes;
  auto set = [&](const char* attribute, const Number& number) {
    attributes.set(attribute, static_cast<float>(number_of(options, number)));
  };
  const bool is_onnx = known(options.optimizer).domain != "treadle";
  attributes.set(is_onnx ? "norm_coefficient" : "weight_decay",
                 static_cast<float>(groups_decay.value_or(number_of(options, kWeightDecay))));
  switch (options.optimizer) {
    case Optimizer::sgd:
      // With beta = 1, ONNX's Momentum computes the same as PyTorch's SGD.
      set("alpha", kMomentum);
      attributes.set("beta", 1.0F);
      attributes.set("mode", std::string(options.nesterov ? "nesterov" : "standard"));
      return attributes;
    case Optimizer::adagrad: attributes.set("decay_factor", 0.0F), set("epsilon", kEpsilon); return attributes;
    case Optimizer::rmsprop: set("smoothing", kSmoothing), set("momentum", kMomentum), set("epsilon", kEpsilon); return attributes;
    case Optimizer::lion: set("beta1", kBeta1), set("beta2", kBeta2); return attributes;
    default: break;
  }
  set("beta1", kBeta1), set("beta2", kBeta2), set("epsilon", kEpsilon);
  if (options.optimizer == Optimizer::adamw) attributes.set("decoupled", int64_t{1});
  return attributes;
}

}  // namespace

std::string_view name_of(Optimizer optimizer) { return known(optimizer).name; }

std::string_view name_of(Schedule::Kind kind) {
  for (const auto& [name, each] : kSchedules)
    if (each == kind) return name;
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no schedule {}", static_cast<int>(kind)));
}

Optimizer optimizer_named(std::string_view name) {
  for (const Known& each : all_known())
    if (each.name == name) return each.optimizer;
  throw_unknown("optimizer", name, names_in(all_known()));
}

Schedule::Kind schedule_named(std::string_view name) {
  for (const auto& [each, kind] : kSchedules)
    if (each == name) return kind;
  throw_unknown("schedule", name, names_in(kSchedules));
}

std::string optimizer_names() { return fmt::format("{}", fmt::join(names_in(all_known()), ", ")); }
std::string schedule_names() { return fmt::format("{}", fmt::join(names_in(kSchedules), ", ")); }

double Schedule::factor(int64_t index) const {
  auto cosine = [](double from, double to, double part) { return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2; };
  if (kind == Kind::one_cycle) {
    constexpr double kRise = 0.3, kFirst = 1.0 / 25, kLast = 1.0 / 25 / 1e4;
    const double peak = kRise * static_cast<double>(total_steps) - 1, end = static_cast<double>(total_steps) - 1,
                 at = std::min(static_cast<double>(index), end);
    return at <= peak ? cosine(kFirst, 1, peak > 0 ? at / peak : 1) : cosine(1, kLast, (at - peak) / (end - peak));
  }
  if (index < warmup_steps) return static_cast<double>(index + 1) / static_cast<double>(warmup_steps);
  const int64_t after = index - warmup_steps, length = total_steps - warmup_steps;
  const double part = length > 0 ? std::min(1.0, static_cast<double>(after) / static_cast<double>(length)) : 1;
  switch (kind) {
    case Kind::step: return std::pow(gamma.value_or(0.1), static_cast<double>(after / step_size));
    case Kind::cosine: return cosine(1, final_factor.value_or(0), part);
    case Kind::linear: return 1 + (final_factor.value_or(0) - 1) * part;
    default: return 1;
  }
}

std::string state_name(const std::string& parameter, std::string_view what) { return fmt::format("{}/{}", parameter, what); }

std::vector<std::string> state_names(const TrainerOptions& options) {
  std::vector<std::string> names = known(options.optimizer).state;
  if (options.ema_decay > 0) names.emplace_back(kAverage);
  return names;
}

void check_numbers(const TrainerOptions& options) {
  for (const Number& number : {kWeightDecay, kMomentum, kBeta1, kBeta2, kEpsilon, kSmoothing})
    if ((options.*number.given).has_value() && !(known(options.optimizer).usual.*number.usual))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the optimizer {} has no use for {}", known(options.optimizer).name, number.name));
}

void check_groups(const TrainerOptions& options, const std::vector<std::string>& parameters) {
  for (const ParameterGroup& group : options.groups)
    for (const std::string& pattern : group.parameters)
      if (std::none_of(parameters.begin(), parameters.end(), [&](const std::string& name) { return matches(pattern, name); }))
        throw Error(ErrorCode::not_found, fmt::format("a parameter group names \"{}\", which is no trained parameter; the nearest: {}",
                                                      pattern, nearest_names(pattern, parameters)));
}

std::vector<std::pair<std::string, double>> hyperparameters(const TrainerOptions& o) {
  std::vector<std::pair<std::string, double>> named;
  for (const Number& number : {kWeightDecay, kMomentum, kBeta1, kBeta2, kEpsilon, kSmoothing})
    if (known(o.optimizer).usual.*number.usual) named.emplace_back(number.name, number_of(o, number));
  return named;
}

std::pair<ValueId, ValueId> add_scalars(Graph& graph) {
  return {graph.add_input(kLearningRate, Type::tensor(DType::float32, SymbolicShape{})),
          graph.add_input(kUpdateCount, Type::tensor(DType::int64, SymbolicShape{}))};
}

ValueId updated(Graph& graph, const std::string& kept, const char* op_type, ValueId by, Attributes attributes) {
  ValueId before = graph.find_value(kept);
  if (before == kNoValue) before = graph.add_input(kept, graph.type(by));
  const NodeId id = graph.add_node(
      {.op_type = op_type, .inputs = {before, by}, .attributes = std::move(attributes), .domain = "treadle", .name = kept + "/update"});
  infer_node(graph, id);
  return graph.node(id).outputs[0];
}

std::vector<ParameterGradient> add_clipping(Graph& graph, const TrainerOptions& options, std::vector<ParameterGradient> gradients) {
  if (options.clip_value > 0) {
    const ValueId low = number(graph, "clip/low", -options.clip_value), high = number(graph, "clip/high", options.clip_value);
    for (auto& [value, places] : gradients) value = appended(graph, {.op_type = "Clip", .inputs = {value, low, high}, .name = "clip"});
  }
  if (options.clip_norm > 0 && !gradients.empty()) {
    ValueId sum = kNoValue;
    for (const auto& [value, places] : gradients) {
      const ValueId squares = appended(
          graph, {.op_type = "ReduceSumSquare", .inputs = {value}, .attributes = {{"keepdims", int64_t{0}}}, .name = "clip/squares"});
      sum = sum == kNoValue ? squares : appended(graph, {.op_type = "Add", .inputs = {sum, squares}, .name = "clip/sum"});
    }
    // Adds a small number to the norm, as PyTorch does, so that the division below is safe.
    ValueId norm = appended(graph, {.op_type = "Sqrt", .inputs = {sum}, .name = "clip/norm"});
    norm = appended(graph, {.op_type = "Add", .inputs = {norm, number(graph, "clip/little", 1e-6)}, .name = "clip/norm"});
    const ValueId ratio =
        appended(graph, {.op_type = "Div", .inputs = {number(graph, "clip/most", options.clip_norm), norm}, .name = "clip/ratio"});
    const ValueId factor = appended(graph, {.op_type = "Min", .inputs = {ratio, number(graph, "clip/one", 1)}, .name = "clip/factor"});
    for (auto& [value, places] : gradients) value = appended(graph, {.op_type = "Mul", .inputs = {value, factor}, .name = "clip/scaled"});
  }
  return gradients;
}

std::vector<ValueId> add_update(Graph& graph, const TrainerOptions& options, const std::string& parameter,
                                const ParameterGradient& gradient, ValueId rate, ValueId count) {
  const Known& optimizer = known(options.optimizer);
  const ParameterGroup* group = group_of(options, parameter);
  const ValueId value = graph.find_value(parameter);
  if (group && group->rate_factor != 1)
    rate = appended(graph,
                    {.op_type = "Mul", .inputs = {rate, number(graph, "rate_factor", group->rate_factor)}, .name = parameter + "/rate"});
  const bool lazy = gradient.has_rows();
  NodeSpec spec{.op_type = fmt::format("{}{}", lazy ? "Lazy" : "", optimizer.op),
                .inputs = {rate, count, value, gradient.value},
                .attributes = attributes_of(options, group ? group->weight_decay : std::nullopt),
                .domain = std::string(lazy ? "treadle" : optimizer.domain),
                .name = parameter + "/update",
                .num_outputs = static_cast<int>(1 + optimizer.state.size())};
  for (const std::string& what : optimizer.state) spec.inputs.push_back(graph.add_input(parameter + "/" + what, graph.type(value)));
  if (lazy) spec.inputs.push_back(gradient.places);
  const NodeId id = graph.add_node(std::move(spec));
  infer_node(graph, id);
  std::vector<ValueId> made = graph.node(id).outputs;
  if (options.ema_decay > 0) {
    const std::string name = fmt::format("{}/{}", parameter, kAverage);
    made.push_back(appended(graph, {.op_type = "AverageParameter",
                                    .inputs = {graph.add_input(name, graph.type(value)), made[0]},
                                    .attributes = {{"decay", static_cast<float>(options.ema_decay)}},
                                    .domain = "treadle",
                                    .name = name + "/update"}));
  }
  return made;
}

}  // namespace treadle::train
