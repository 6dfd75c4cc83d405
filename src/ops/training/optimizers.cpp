// Adagrad, Adam, Momentum (ai.onnx.preview.training, opset 1): inputs R (learning rate), T (update count), then all X, all G (gradients),
// and the state of each; outputs all new X and the new state. AdamUpdate, RMSPropUpdate, LionUpdate and LambUpdate (treadle) are the same
// for what ONNX has not, with PyTorch's formulas; AccumulateGradient adds a part of a gradient to a sum that is kept, AverageParameter
// moves an exponential average towards a parameter.
#include <fmt/format.h>

#include <cmath>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/training/gradient_operator.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr std::string_view kDomain = "ai.onnx.preview.training";
constexpr TypeSet kTypes{DType::float32, DType::float64};

// kStates: state tensors of each X, so that every X has 2 + kStates inputs and 1 + kStates outputs.

template <int kStates>
void infer(InferContext& c) {
  int tensors = c.num_inputs() - 2;
  if (tensors <= 0 || tensors % (2 + kStates) != 0)
    throw Error(ErrorCode::invalid_model, fmt::format("{} tensors after R and T; {} are expected for each X", tensors, 2 + kStates));
  int count = tensors / (2 + kStates);
  for (int k = 0; k < count; ++k) {
    c.set_output(k, c.input(2 + k));
    for (int s = 0; s < kStates; ++s) c.set_output(count * (1 + s) + k, c.input(2 + count * (2 + s) + k));
  }
}

/// One node for each X: what it does to one does not depend on the others.
template <int kStates>
void split_tensors(Graph& graph, NodeId id) {
  auto size = [](const std::vector<ValueId>& ids) { return static_cast<int>(ids.size()); };
  const std::vector<ValueId> inputs = graph.node(id).inputs, outputs = graph.node(id).outputs;
  int tensors = size(inputs) - 2;
  if (tensors <= 2 + kStates || tensors % (2 + kStates) != 0) return;
  int count = tensors / (2 + kStates);
  for (int k = 0; k < count; ++k) {
    std::vector<ValueId> operands = {inputs[0], inputs[1]};
    for (int part = 0; part < 2 + kStates; ++part) operands.push_back(inputs[static_cast<size_t>(2 + part * count + k)]);
    NodeId one = graph.add_node({.op_type = graph.node(id).op_type,
                                 .inputs = std::move(operands),
                                 .attributes = graph.node(id).attributes,
                                 .domain = graph.node(id).domain,
                                 .num_outputs = 1 + kStates},
                                id);
    for (int part = 0; part < 1 + kStates; ++part) {
      auto at = static_cast<size_t>(part * count + k);
      if (at < outputs.size() && outputs[at] != kNoValue)
        graph.replace_uses(outputs[at], graph.node(one).outputs[static_cast<size_t>(part)]);
    }
  }
  graph.remove_node(id);
}

struct Scalars {
  bool wide_rate;  // R is float64
  float norm_coefficient;

  static Scalars bind(BindContext& c) { return {c.dtype(0) == DType::float64, c.get_float("norm_coefficient", 0)}; }
  double rate(RunContext& c) const { return wide_rate ? *c.in<double>(0) : static_cast<double>(*c.in<float>(0)); }
  static double count(RunContext& c) { return static_cast<double>(*c.in<int64_t>(1)); }
};

/// The kernels read and write all tensors as X's, and one rate and one count.
void check_operands(const BindContext& c) {
  for (int i = 0; i < c.num_inputs(); ++i)
    if (!c.has_input(i)) throw Error(ErrorCode::invalid_argument, fmt::format("input {} is missing", i));
  for (int i : {0, 1})
    if (c.num_elements(i) != 1)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}; expected one element", i == 0 ? "R" : "T", to_string(c.shape(i))));
  for (int i = 3; i < c.num_inputs(); ++i)
    if (!(c.shape(i) == c.shape(2)) || c.dtype(i) != c.dtype(2))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("X is {}{}, input {} is {}{}; they must have the same type", short_name_of(c.dtype(2)), to_string(c.shape(2)),
                              i, short_name_of(c.dtype(i)), to_string(c.shape(i))));
}

template <typename Fn>
void for_elements(RunContext& c, int64_t n, Fn&& fn) {
  parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    TREADLE_ELEMENTWISE_LOOP
    for (int64_t i = begin; i < end; ++i) fn(i);
  });
}

template <typename T>
struct Adagrad {
  int64_t n;
  Scalars scalars;
  float decay, epsilon;

  static Adagrad bind(BindContext& c) {
    check_operands(c);
    return {c.num_elements(2), Scalars::bind(c), c.get_float("decay_factor", 0), c.get_float("epsilon", 1e-6F)};
  }
  void run(RunContext& c) const {
    T rate = static_cast<T>(scalars.rate(c) / (1 + Scalars::count(c) * static_cast<double>(decay)));
    T norm = scalars.norm_coefficient, tiny = epsilon;
    const T *x = c.in<T>(2), *g = c.in<T>(3), *h = c.in<T>(4);
    T *x_new = c.out<T>(0), *h_new = c.out<T>(1);
    for_elements(c, n, [=](int64_t i) {
      T gradient = norm * x[i] + g[i];
      T squares = h[i] + gradient * gradient;
      x_new[i] = x[i] - rate * gradient / (std::sqrt(squares) + tiny);
      h_new[i] = squares;
    });
  }
};

template <typename T>
struct Adam {
  int64_t n;
  Scalars scalars;
  float alpha, beta, epsilon, norm_post;

  static Adam bind(BindContext& c) {
    check_operands(c);
    return {c.num_elements(2),
            Scalars::bind(c),
            c.get_float("alpha", 0.9F),
            c.get_float("beta", 0.999F),
            c.get_float("epsilon", 1e-6F),
            c.get_float("norm_coefficient_post", 0)};
  }
  void run(RunContext& c) const {
    double count = Scalars::count(c), rate = scalars.rate(c);
    if (count > 0) rate *= std::sqrt(1 - std::pow(static_cast<double>(beta), count)) / (1 - std::pow(static_cast<double>(alpha), count));
    T step = static_cast<T>(rate), norm = scalars.norm_coefficient, tiny = epsilon, keep = T{1} - static_cast<T>(norm_post);
    T a = alpha, b = beta;
    const T *x = c.in<T>(2), *g = c.in<T>(3), *v = c.in<T>(4), *h = c.in<T>(5);
    T *x_new = c.out<T>(0), *v_new = c.out<T>(1), *h_new = c.out<T>(2);
    for_elements(c, n, [=](int64_t i) {
      T gradient = norm * x[i] + g[i];
      T mean = a * v[i] + (1 - a) * gradient;
      T squares = b * h[i] + (1 - b) * gradient * gradient;
      x_new[i] = keep * (x[i] - step * mean / (std::sqrt(squares) + tiny));
      v_new[i] = mean;
      h_new[i] = squares;
    });
  }
};

template <typename T>
struct Momentum {
  int64_t n;
  Scalars scalars;
  float alpha, beta;
  bool nesterov;

  static Momentum bind(BindContext& c) {
    check_operands(c);
    std::string_view mode = c.get_string("mode");
    if (mode != "standard" && mode != "nesterov")
      throw Error(ErrorCode::invalid_model, fmt::format("mode = \"{}\"; it must be standard or nesterov", mode));
    return {c.num_elements(2), Scalars::bind(c), c.get_float("alpha"), c.get_float("beta"), mode == "nesterov"};
  }
  void run(RunContext& c) const {
    T rate = static_cast<T>(scalars.rate(c)), norm = scalars.norm_coefficient, a = alpha;
    T b = Scalars::count(c) > 0 ? static_cast<T>(beta) : T{1};
    T direct = nesterov ? T{1} : T{0}, by_momentum = nesterov ? a : T{1};
    const T *x = c.in<T>(2), *g = c.in<T>(3), *v = c.in<T>(4);
    T *x_new = c.out<T>(0), *v_new = c.out<T>(1);
    for_elements(c, n, [=](int64_t i) {
      T gradient = norm * x[i] + g[i];
      T momentum = a * v[i] + b * gradient;
      x_new[i] = x[i] - rate * (direct * gradient + by_momentum * momentum);
      v_new[i] = momentum;
    });
  }
};

// The mean of gradients and of their squares, both as if they had not begun with 0.
template <typename T>
struct Moments {
  T a, b, mean_scale, squares_scale, tiny;
  Moments(double beta1, double beta2, double epsilon, double count)
      : a(static_cast<T>(beta1)),
        b(static_cast<T>(beta2)),
        mean_scale(static_cast<T>(1 / (1 - std::pow(beta1, count)))),
        squares_scale(static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, count)))),
        tiny(static_cast<T>(epsilon)) {}
  T step(T mean, T squares) const { return mean * mean_scale / (std::sqrt(squares) * squares_scale + tiny); }
};

/// An update counts from 1. @throws Error(invalid_argument)
double checked_count(RunContext& c) {
  const double count = Scalars::count(c);
  if (!(count >= 1)) throw Error(ErrorCode::invalid_argument, fmt::format("T is {}; updates count from 1", count));
  return count;
}

template <typename T>
struct AdamUpdate {
  int64_t n;
  Scalars scalars;
  float beta1, beta2, epsilon, decay;
  bool decoupled;

  static AdamUpdate bind(BindContext& c) {
    check_operands(c);
    return {c.num_elements(2),
            Scalars::bind(c),
            c.get_float("beta1", 0.9F),
            c.get_float("beta2", 0.999F),
            c.get_float("epsilon", 1e-8F),
            c.get_float("weight_decay", 0),
            c.get_int("decoupled") != 0};
  }
  void run(RunContext& c) const {
    const double by = scalars.rate(c), loss = static_cast<double>(decay);
    const Moments<T> m(static_cast<double>(beta1), static_cast<double>(beta2), static_cast<double>(epsilon), checked_count(c));
    const T rate = static_cast<T>(by), keep = static_cast<T>(decoupled ? 1 - by * loss : 1), added = static_cast<T>(decoupled ? 0 : loss);
    const T *x = c.in<T>(2), *g = c.in<T>(3), *v = c.in<T>(4), *h = c.in<T>(5);
    T *x_new = c.out<T>(0), *v_new = c.out<T>(1), *h_new = c.out<T>(2);
    for_elements(c, n, [=](int64_t i) {
      const T gradient = g[i] + added * x[i];
      const T mean = m.a * v[i] + (1 - m.a) * gradient, squares = m.b * h[i] + (1 - m.b) * gradient * gradient;
      x_new[i] = keep * x[i] - rate * m.step(mean, squares);
      v_new[i] = mean;
      h_new[i] = squares;
    });
  }
};

template <typename T>
struct RMSPropUpdate {
  int64_t n;
  Scalars scalars;
  float smoothing, momentum, epsilon, decay;

  static RMSPropUpdate bind(BindContext& c) {
    check_operands(c);
    return {c.num_elements(2),
            Scalars::bind(c),
            c.get_float("smoothing", 0.99F),
            c.get_float("momentum", 0),
            c.get_float("epsilon", 1e-8F),
            c.get_float("weight_decay", 0)};
  }
  void run(RunContext& c) const {
    const T rate = static_cast<T>(scalars.rate(c)), a = smoothing, m = momentum, tiny = epsilon, added = decay;
    const T *x = c.in<T>(2), *g = c.in<T>(3), *h = c.in<T>(4), *v = c.in<T>(5);
    T *x_new = c.out<T>(0), *h_new = c.out<T>(1), *v_new = c.out<T>(2);
    for_elements(c, n, [=](int64_t i) {
      const T gradient = g[i] + added * x[i], squares = a * h[i] + (1 - a) * gradient * gradient;
      const T velocity = m * v[i] + gradient / (std::sqrt(squares) + tiny);
      x_new[i] = x[i] - rate * velocity;
      h_new[i] = squares;
      v_new[i] = velocity;
    });
  }
};

// Chen et al. 2023, arXiv:2302.06675.
template <typename T>
struct LionUpdate {
  int64_t n;
  Scalars scalars;
  float beta1, beta2, decay;

  static LionUpdate bind(BindContext& c) {
    check_operands(c);
    return {c.num_elements(2), Scalars::bind(c), c.get_float("beta1", 0.9F), c.get_float("beta2", 0.99F), c.get_float("weight_decay", 0)};
  }
  void run(RunContext& c) const {
    const double by = scalars.rate(c);
    const T rate = static_cast<T>(by), a = beta1, b = beta2, keep = static_cast<T>(1 - by * static_cast<double>(decay));
    const T *x = c.in<T>(2), *g = c.in<T>(3), *v = c.in<T>(4);
    T *x_new = c.out<T>(0), *v_new = c.out<T>(1);
    for_elements(c, n, [=](int64_t i) {
      const T direction = a * v[i] + (1 - a) * g[i];
      const T sign = direction > 0 ? T{1} : direction < 0 ? T{-1} : direction;  // a NaN stays one
      v_new[i] = b * v[i] + (1 - b) * g[i];
      x_new[i] = keep * x[i] - rate * sign;
    });
  }
};

// You et al. 2020, arXiv:1904.00962: Adam's step and the decay, as long as the parameter. Lengths are summed in one order.
template <typename T>
struct LambUpdate {
  int64_t n;
  Scalars scalars;
  float beta1, beta2, epsilon, decay;

  static LambUpdate bind(BindContext& c) {
    check_operands(c);
    return {c.num_elements(2),
            Scalars::bind(c),
            c.get_float("beta1", 0.9F),
            c.get_float("beta2", 0.999F),
            c.get_float("epsilon", 1e-6F),
            c.get_float("weight_decay", 0)};
  }
  void run(RunContext& c) const {
    const Moments<T> m(static_cast<double>(beta1), static_cast<double>(beta2), static_cast<double>(epsilon), checked_count(c));
    const T added = decay;
    const T *x = c.in<T>(2), *g = c.in<T>(3), *v = c.in<T>(4), *h = c.in<T>(5);
    T *x_new = c.out<T>(0), *v_new = c.out<T>(1), *h_new = c.out<T>(2);
    for_elements(c, n, [=](int64_t i) {
      v_new[i] = m.a * v[i] + (1 - m.a) * g[i];
      h_new[i] = m.b * h[i] + (1 - m.b) * g[i] * g[i];
    });
    double lengths = 0, steps = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double length = static_cast<double>(x[i]), step = static_cast<double>(m.step(v_new[i], h_new[i]) + added * x[i]);
      lengths += length * length, steps += step * step;
    }
    const double trust = lengths > 0 && steps > 0 ? std::sqrt(lengths) / std::sqrt(steps) : 1;
    const T rate = static_cast<T>(scalars.rate(c) * trust);
    for_elements(c, n, [=](int64_t i) { x_new[i] = x[i] - rate * (m.step(v_new[i], h_new[i]) + added * x[i]); });
  }
};

template <typename T>
struct AccumulateGradient {
  int64_t n;
  float factor;

  static AccumulateGradient bind(BindContext& c) {
    if (!(c.shape(0) == c.shape(1)))
      throw Error(ErrorCode::invalid_argument, fmt::format("the sum {} and the gradient {}", to_string(c.shape(0)), to_string(c.shape(1))));
    return {c.num_elements(0), c.get_float("factor", 1)};
  }
  void run(RunContext& c) const {
    const T *sum = c.in<T>(0), *g = c.in<T>(1), by = factor;
    T* to = c.out<T>(0);
    for_elements(c, n, [=](int64_t i) { to[i] = sum[i] + by * g[i]; });
  }
};

template <typename T>
struct AverageParameter {
  int64_t n;
  float decay;

  static AverageParameter bind(BindContext& c) {
    if (!(c.shape(0) == c.shape(1)))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the average {} and the parameter {}", to_string(c.shape(0)), to_string(c.shape(1))));
    return {c.num_elements(0), c.get_float("decay", 0)};
  }
  void run(RunContext& c) const {
    const T *average = c.in<T>(0), *x = c.in<T>(1), part = T{1} - static_cast<T>(decay);
    T* to = c.out<T>(0);
    for_elements(c, n, [=](int64_t i) { to[i] = average[i] + part * (x[i] - average[i]); });
  }
};

// What has been computed elsewhere becomes the state.
template <typename T>
struct Assign {
  int64_t n;

  static Assign bind(BindContext& c) {
    if (!(c.shape(0) == c.shape(1)))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the state {} and its new value {}", to_string(c.shape(0)), to_string(c.shape(1))));
    return {c.num_elements(0)};
  }
  void run(RunContext& c) const {
    const T* value = c.in<T>(1);
    T* to = c.out<T>(0);
    for_elements(c, n, [=](int64_t i) { to[i] = value[i]; });
  }
};

Cost cost(const ShapeContext& c) {
  double bytes = 0;
  for (int i = 2; i < c.num_inputs(); ++i) bytes += 2 * c.size_bytes(i);
  return {12 * static_cast<double>(c.num_elements(2)), bytes};
}

template <int kStates>
OpDef optimizer(std::string_view name, std::vector<AttributeDef> attributes, std::vector<KernelDef> kernels,
                std::string_view domain = kDomain) {
  OpDef op{.name = name,
           .domain = domain,
           .since = {1},
           .inputs = {{"R", kTypes, "T1"}, {"T", kInt64, "T2"}, {"inputs", kTypes, "T3", Presence::variadic}},
           .outputs = {{"outputs", kTypes, "T3", Presence::variadic}},
           .attributes = std::move(attributes),
           .infer = infer<kStates>,
           .cost = cost,
           .alias = {may_reuse(0, 2)},
           .kernels = std::move(kernels),
           .decompose = split_tensors<kStates>,
           .updated_input = [](const Node&, int output) { return output == 0 ? 2 : 3 + output; }};
  for (int s = 0; s < kStates; ++s) op.alias.push_back(may_reuse(1 + s, 4 + s));
  return op;
}

template <template <typename> class K>
std::vector<KernelDef> by_parameter() {
  return {kernel<K<float>>("plain", DType::float32, 2), kernel<K<double>>("plain", DType::float64, 2)};
}

}  // namespace

std::vector<OpDef> training_optimizers_ops() {
  using Required = AttributeDef::Required;
  return {
      optimizer<1>("Adagrad", {{"decay_factor", 0.0F}, {"epsilon", 1e-6F}, {"norm_coefficient", 0.0F}}, by_parameter<Adagrad>()),
      optimizer<2>("Adam",
                   {{"alpha", 0.9F}, {"beta", 0.999F}, {"epsilon", 1e-6F}, {"norm_coefficient", 0.0F}, {"norm_coefficient_post", 0.0F}},
                   by_parameter<Adam>()),
      optimizer<1>("Momentum", {{"alpha", Required{}}, {"beta", Required{}}, {"mode", Required{}}, {"norm_coefficient", Required{}}},
                   by_parameter<Momentum>()),
      optimizer<2>("AdamUpdate",
                   {{"beta1", 0.9F}, {"beta2", 0.999F}, {"decoupled", int64_t{0}}, {"epsilon", 1e-8F}, {"weight_decay", 0.0F}},
                   by_parameter<AdamUpdate>(), "treadle"),
      optimizer<2>("RMSPropUpdate", {{"epsilon", 1e-8F}, {"momentum", 0.0F}, {"smoothing", 0.99F}, {"weight_decay", 0.0F}},
                   by_parameter<RMSPropUpdate>(), "treadle"),
      optimizer<1>("LionUpdate", {{"beta1", 0.9F}, {"beta2", 0.99F}, {"weight_decay", 0.0F}}, by_parameter<LionUpdate>(), "treadle"),
      optimizer<2>("LambUpdate", {{"beta1", 0.9F}, {"beta2", 0.999F}, {"epsilon", 1e-6F}, {"weight_decay", 0.0F}},
                   by_parameter<LambUpdate>(), "treadle"),
      {.name = "AccumulateGradient",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"sum", kTypes, "T"}, {"gradient", kTypes, "T"}},
       .outputs = {{"new_sum", kTypes, "T"}},
       .attributes = {{"factor", 1.0F}},
       .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
       .cost = elementwise_cost<2>,
       .alias = {may_reuse(0, 0)},
       .kernels = {kernel<AccumulateGradient<float>>("plain", DType::float32), kernel<AccumulateGradient<double>>("plain", DType::float64)},
       .updated_input = [](const Node&, int) { return 0; }},
      {.name = "AverageParameter",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"average", kTypes, "T"}, {"parameter", kTypes, "T"}},
       .outputs = {{"new_average", kTypes, "T"}},
       .attributes = {{"decay", AttributeDef::Required{}}},
       .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
       .cost = elementwise_cost<3>,
       .alias = {may_reuse(0, 0)},
       .kernels = {kernel<AverageParameter<float>>("plain", DType::float32), kernel<AverageParameter<double>>("plain", DType::float64)},
       .updated_input = [](const Node&, int) { return 0; }},
      {.name = "Assign",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"state", kTypes, "T"}, {"value", kTypes, "T"}},
       .outputs = {{"new_state", kTypes, "T"}},
       .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
       .cost = elementwise_cost<2>,
       .alias = {may_reuse(0, 0)},
       .kernels = {kernel<Assign<float>>("plain", DType::float32), kernel<Assign<double>>("plain", DType::float64)},
       .updated_input = [](const Node&, int) { return 0; }},
      gradient_operator(),
  };
}

}  // namespace treadle::ops
