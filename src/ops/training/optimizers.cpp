// Implements Adagrad, Adam, Momentum (ai.onnx.preview.training, opset 1). Inputs: R (learning rate), T (update count), then all X, all G
// (gradients) and all states. Outputs: all new X and new states. AdamUpdate, RMSPropUpdate, LionUpdate and LambUpdate (treadle) have the
// same form, with PyTorch's formulas. Lazy… (treadle) updates one X for which only some rows have a gradient, as GatherGradRows returns it.
// The other rows of X and of its states stay unchanged, without decay.
#include "ops/training/optimizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/list.h"
#include "ops/training/elements.h"
#include "ops/training/gradient_operator.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr std::string_view kDomain = "ai.onnx.preview.training";
constexpr TypeSet kTypes = kUpdated;

// kStates is the number of state tensors per X. Each X has 2 + kStates inputs and 1 + kStates outputs.

template <int kStates>
void infer(InferContext& c) {
  int tensors = c.num_inputs() - 2;
  if (tensors <= 0 || tensors % (2 + kStates) != 0)
    throw Error(ErrorCode::invalid_model, fmt::format("{} tensors after R and T; {} are expected for each X", tensors, 2 + kStates));
  int count = tensors / (2 + kStates);
  if (c.num_outputs() != count * (1 + kStates))
    throw Error(ErrorCode::invalid_model,
                fmt::format("{} outputs for {} tensors X; {} are expected", c.num_outputs(), count, count * (1 + kStates)));
  for (int k = 0; k < count; ++k) {
    for (int part = 1; part < 2 + kStates; ++part)
      if (const DType dtype = c.dtype(2 + part * count + k); dtype != DType::undefined && dtype != c.dtype(2 + k))
        throw Error(ErrorCode::invalid_model, fmt::format("X is {}, its gradient or a state {}", to_string(c.input(2 + k)),
                                                          to_string(c.input(2 + part * count + k))));
    c.set_output(k, c.input(2 + k));
    for (int s = 0; s < kStates; ++s) c.set_output(count * (1 + s) + k, c.input(2 + count * (2 + s) + k));
  }
}

/// Replaces a node for several X by one node for each, because they are updated independently.
template <int kStates>
void split_tensors(Graph& graph, NodeId id) {
  auto size = [](const std::vector<ValueId>& ids) { return static_cast<int>(ids.size()); };
  const std::vector<ValueId> inputs = graph.node(id).inputs, outputs = graph.node(id).outputs;
  int tensors = size(inputs) - 2;
  if (tensors <= 2 + kStates || tensors % (2 + kStates) != 0) return;
  int count = tensors / (2 + kStates);
  if (size(outputs) != count * (1 + kStates)) return;  // inference rejects this node
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
  bool wide_rate;  // true: R is float64
  float norm_coefficient;

  static Scalars bind(BindContext& c) { return {c.dtype(0) == DType::float64, c.get_float("norm_coefficient", 0)}; }
  double rate(RunContext& c) const { return wide_rate ? *c.in<double>(0) : static_cast<double>(*c.in<float>(0)); }
  static double count(RunContext& c) { return static_cast<double>(*c.in<int64_t>(1)); }
};

/// Checks that all tensors have the dtype and shape of X, and that R and T have one element.
/// @param lazy  true: G has only some rows of X, and the last input has their indices
void check_operands(const BindContext& c, bool lazy = false) {
  for (int i = 0; i < c.num_inputs(); ++i)
    if (!c.has_input(i)) throw Error(ErrorCode::invalid_argument, fmt::format("input {} is missing", i));
  for (int i : {0, 1})
    if (c.num_elements(i) != 1)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}; expected one element", i == 0 ? "R" : "T", to_string(c.shape(i))));
  for (int i = lazy ? 4 : 3; i < c.num_inputs() - (lazy ? 1 : 0); ++i)
    if (!(c.shape(i) == c.shape(2)) || c.dtype(i) != c.dtype(2))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("X is {}{}, input {} is {}{}; they must have the same type", short_name_of(c.dtype(2)), to_string(c.shape(2)),
                              i, short_name_of(c.dtype(i)), to_string(c.shape(i))));
}

struct Touched : UpdatedElements {
  static Touched bind(const BindContext& c, int num_states) { return {UpdatedElements::bind(c, num_states)}; }

  /// Calls fn(i, gradient) for each element of X that the update changes.
  template <typename T, typename Fn>
  void for_elements(RunContext& c, Fn&& fn) const {
    const T* g = c.in<T>(3);
    if (!lazy) return ops::for_elements(c, n, [=](int64_t i) { fn(i, g[i]); });
    keep_other_rows<T>(c);
    const int64_t* places = c.in<int64_t>(4 + num_states);
    const int64_t grain = kElementwiseGrain / std::max<int64_t>(width, 1) + 1;
    parallel_for(c.pool(), rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end && places[row] >= 0; ++row) {
        if (places[row] >= extent)
          throw Error(ErrorCode::invalid_argument, fmt::format("the place {} is outside [0, {})", places[row], extent));
        const int64_t first = places[row] * width;
        const T* from = g + row * width;
        TREADLE_ELEMENTWISE_LOOP
        for (int64_t k = 0; k < width; ++k) fn(first + k, from[k]);
      }
    });
  }

 private:
  // Copies the rows that the update does not change, unless the output is in the memory of the old values.
  template <typename T>
  void keep_other_rows(RunContext& c) const {
    for (int k = 0; k <= num_states; ++k) {
      const T* old = c.in<T>(k == 0 ? 2 : 3 + k);
      if (T* made = c.out<T>(k); made != old && n > 0) std::memcpy(made, old, static_cast<size_t>(n) * sizeof(T));
    }
  }
};

template <typename T>
struct Adagrad {
  Touched touched;
  Scalars scalars;
  float decay, epsilon;

  static Adagrad bind(BindContext& c) {
    return {Touched::bind(c, 1), Scalars::bind(c), c.get_float("decay_factor", 0), c.get_float("epsilon", 1e-6F)};
  }
  void run(RunContext& c) const {
    T rate = static_cast<T>(scalars.rate(c) / (1 + Scalars::count(c) * static_cast<double>(decay)));
    T norm = scalars.norm_coefficient, tiny = epsilon;
    const T *x = c.in<T>(2), *h = c.in<T>(4);
    T *x_new = c.out<T>(0), *h_new = c.out<T>(1);
    touched.for_elements<T>(c, [=](int64_t i, T g) {
      T gradient = norm * x[i] + g;
      T squares = h[i] + gradient * gradient;
      x_new[i] = x[i] - rate * gradient / (std::sqrt(squares) + tiny);
      h_new[i] = squares;
    });
  }
};

template <typename T>
struct Adam {
  Touched touched;
  Scalars scalars;
  float alpha, beta, epsilon, norm_post;

  static Adam bind(BindContext& c) {
    return {Touched::bind(c, 2),           Scalars::bind(c),
            c.get_float("alpha", 0.9F),    c.get_float("beta", 0.999F),
            c.get_float("epsilon", 1e-6F), c.get_float("norm_coefficient_post", 0)};
  }
  void run(RunContext& c) const {
    double count = Scalars::count(c), rate = scalars.rate(c);
    if (count > 0) rate *= std::sqrt(1 - std::pow(static_cast<double>(beta), count)) / (1 - std::pow(static_cast<double>(alpha), count));
    T step = static_cast<T>(rate), norm = scalars.norm_coefficient, tiny = epsilon, keep = T{1} - static_cast<T>(norm_post);
    T a = alpha, b = beta;
    const T *x = c.in<T>(2), *v = c.in<T>(4), *h = c.in<T>(5);
    T *x_new = c.out<T>(0), *v_new = c.out<T>(1), *h_new = c.out<T>(2);
    touched.for_elements<T>(c, [=](int64_t i, T g) {
      T gradient = norm * x[i] + g;
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
  Touched touched;
  Scalars scalars;
  float alpha, beta;
  bool nesterov;

  static Momentum bind(BindContext& c) {
    std::string_view mode = c.get_string("mode");
    if (mode != "standard" && mode != "nesterov")
      throw Error(ErrorCode::invalid_model, fmt::format("mode = \"{}\"; it must be standard or nesterov", mode));
    return {Touched::bind(c, 1), Scalars::bind(c), c.get_float("alpha"), c.get_float("beta"), mode == "nesterov"};
  }
  void run(RunContext& c) const {
    T rate = static_cast<T>(scalars.rate(c)), norm = scalars.norm_coefficient, a = alpha;
    T b = Scalars::count(c) > 0 ? static_cast<T>(beta) : T{1};
    T direct = nesterov ? T{1} : T{0}, by_momentum = nesterov ? a : T{1};
    const T *x = c.in<T>(2), *v = c.in<T>(4);
    T *x_new = c.out<T>(0), *v_new = c.out<T>(1);
    touched.for_elements<T>(c, [=](int64_t i, T g) {
      T gradient = norm * x[i] + g;
      T momentum = a * v[i] + b * gradient;
      x_new[i] = x[i] - rate * (direct * gradient + by_momentum * momentum);
      v_new[i] = momentum;
    });
  }
};

// The exponential means of gradients and of squared gradients, with bias correction because they start at 0.
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

/// Returns the number of this update, counted from 1. @throws Error(invalid_argument) if it is less than 1
double checked_count(RunContext& c) {
  const double count = Scalars::count(c);
  if (!(count >= 1)) throw Error(ErrorCode::invalid_argument, fmt::format("T is {}; updates count from 1", count));
  return count;
}

template <typename T>
struct AdamUpdate {
  Touched touched;
  Scalars scalars;
  float beta1, beta2, epsilon, decay;
  bool decoupled;

  static AdamUpdate bind(BindContext& c) {
    return {Touched::bind(c, 2),           Scalars::bind(c),
            c.get_float("beta1", 0.9F),    c.get_float("beta2", 0.999F),
            c.get_float("epsilon", 1e-8F), c.get_float("weight_decay", 0),
            c.get_int("decoupled") != 0};
  }
  void run(RunContext& c) const {
    const double by = scalars.rate(c), loss = static_cast<double>(decay);
    const Moments<T> m(static_cast<double>(beta1), static_cast<double>(beta2), static_cast<double>(epsilon), checked_count(c));
    const T rate = static_cast<T>(by), keep = static_cast<T>(decoupled ? 1 - by * loss : 1), added = static_cast<T>(decoupled ? 0 : loss);
    const T *x = c.in<T>(2), *v = c.in<T>(4), *h = c.in<T>(5);
    T *x_new = c.out<T>(0), *v_new = c.out<T>(1), *h_new = c.out<T>(2);
    touched.for_elements<T>(c, [=](int64_t i, T g) {
      const T gradient = g + added * x[i];
      const T mean = m.a * v[i] + (1 - m.a) * gradient, squares = m.b * h[i] + (1 - m.b) * gradient * gradient;
      x_new[i] = keep * x[i] - rate * m.step(mean, squares);
      v_new[i] = mean;
      h_new[i] = squares;
    });
  }
};

template <typename T>
struct RMSPropUpdate {
  Touched touched;
  Scalars scalars;
  float smoothing, momentum, epsilon, decay;

  static RMSPropUpdate bind(BindContext& c) {
    return {Touched::bind(c, 2),
            Scalars::bind(c),
            c.get_float("smoothing", 0.99F),
            c.get_float("momentum", 0),
            c.get_float("epsilon", 1e-8F),
            c.get_float("weight_decay", 0)};
  }
  void run(RunContext& c) const {
    const T rate = static_cast<T>(scalars.rate(c)), a = smoothing, m = momentum, tiny = epsilon, added = decay;
    const T *x = c.in<T>(2), *h = c.in<T>(4), *v = c.in<T>(5);
    T *x_new = c.out<T>(0), *h_new = c.out<T>(1), *v_new = c.out<T>(2);
    touched.for_elements<T>(c, [=](int64_t i, T g) {
      const T gradient = g + added * x[i], squares = a * h[i] + (1 - a) * gradient * gradient;
      const T velocity = m * v[i] + gradient / (std::sqrt(squares) + tiny);
      x_new[i] = x[i] - rate * velocity;
      h_new[i] = squares;
      v_new[i] = velocity;
    });
  }
};

// The optimizer Lion: Chen et al. 2023, arXiv:2302.06675.
template <typename T>
struct LionUpdate {
  Touched touched;
  Scalars scalars;
  float beta1, beta2, decay;

  static LionUpdate bind(BindContext& c) {
    return {Touched::bind(c, 1), Scalars::bind(c), c.get_float("beta1", 0.9F), c.get_float("beta2", 0.99F), c.get_float("weight_decay", 0)};
  }
  void run(RunContext& c) const {
    const double by = scalars.rate(c);
    const T rate = static_cast<T>(by), a = beta1, b = beta2, keep = static_cast<T>(1 - by * static_cast<double>(decay));
    const T *x = c.in<T>(2), *v = c.in<T>(4);
    T *x_new = c.out<T>(0), *v_new = c.out<T>(1);
    touched.for_elements<T>(c, [=](int64_t i, T g) {
      const T direction = a * v[i] + (1 - a) * g;
      const T sign = direction > 0 ? T{1} : direction < 0 ? T{-1} : direction;  // NaN stays NaN
      v_new[i] = b * v[i] + (1 - b) * g;
      x_new[i] = keep * x[i] - rate * sign;
    });
  }
};

// The optimizer LAMB: You et al. 2020, arXiv:1904.00962. It scales Adam's step plus decay to the norm of the parameter. Norms are summed in
// a fixed order, so the result does not depend on the number of threads.
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

Cost cost(const ShapeContext& c) {
  double bytes = 0;
  for (int i = 2; i < c.num_inputs(); ++i) bytes += 2 * c.size_bytes(i);
  return {12 * static_cast<double>(c.num_elements(2)), bytes};
}

template <int kStates>
void infer_lazy(InferContext& c) {
  c.set_output(0, c.input(2));
  for (int s = 0; s < kStates; ++s) c.set_output(1 + s, c.input(4 + s));
}

Cost lazy_cost(const ShapeContext& c) { return {12 * static_cast<double>(c.num_elements(3)), 2 * c.num_inputs() * c.size_bytes(3)}; }

template <int kStates>
OpDef optimizer(std::string_view name, std::vector<AttributeDef> attributes, std::vector<KernelDef> kernels,
                std::string_view domain = kDomain) {
  OpDef op{.name = name,
           .domain = domain,
           .since = {1},
           .inputs = {{"R", kTypes, "T1"}, {"T", kInt64, "T2"}, {"inputs", kTypes, "", Presence::variadic}},
           .outputs = {{"outputs", kTypes, "", Presence::variadic}},
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

/// Declares the lazy form of an optimizer, which updates only some rows of one X.
template <int kStates>
OpDef lazy_optimizer(std::string_view name, const OpDef& dense) {
  OpDef op{.name = name,
           .domain = "treadle",
           .since = {1},
           .inputs = {{"R", kTypes, "T1"}, {"T", kInt64, "T2"}, {"X", kTypes, "T3"}, {"rows", kTypes, "T3"}, {"state", kTypes, "T3"}},
           .outputs = {{"new_X", kTypes, "T3"}, {"new_state", kTypes, "T3"}},
           .attributes = dense.attributes,
           .infer = infer_lazy<kStates>,
           .cost = lazy_cost,
           .alias = dense.alias,
           .kernels = dense.kernels,
           .updated_input = dense.updated_input};
  if (kStates == 2) op.inputs.push_back({"state2", kTypes, "T3"}), op.outputs.push_back({"new_state2", kTypes, "T3"});
  op.inputs.push_back({"places", kInt64});
  return op;
}

template <template <typename> class K>
std::vector<KernelDef> by_parameter() {
  return typed<K, float, double>("plain", 2);
}

}  // namespace

UpdatedElements UpdatedElements::bind(const BindContext& c, int num_states) {
  const bool lazy = c.num_inputs() == 5 + num_states && c.dtype(4 + num_states) == DType::int64;
  check_operands(c, lazy);
  UpdatedElements t{c.num_elements(2), num_states, lazy};
  if (!lazy) return t;
  const Shape &x = c.shape(2), &g = c.shape(3);
  bool fits = x.rank() >= 1 && g.rank() == x.rank() && c.num_elements(4 + num_states) == g[0];
  for (int axis = 1; fits && axis < x.rank(); ++axis) fits = g[axis] == x[axis];
  if (!fits)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("X is {}, its gradient has rows {} at {} places", to_string(x), to_string(g), c.num_elements(4 + num_states)));
  t.rows = g[0], t.width = x.product(1, x.rank()), t.extent = x[0];
  return t;
}

std::vector<OpDef> training_optimizers_ops() {
  using Required = AttributeDef::Required;
  std::vector<OpDef> ops = {
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
      gradient_operator(),
  };
  auto dense = [&](std::string_view name) -> const OpDef& {
    return *std::find_if(ops.begin(), ops.end(), [&](const OpDef& op) { return op.name == name; });
  };
  std::vector<OpDef> lazy = {lazy_optimizer<1>("LazyAdagrad", dense("Adagrad")), lazy_optimizer<1>("LazyMomentum", dense("Momentum")),
                             lazy_optimizer<2>("LazyAdamUpdate", dense("AdamUpdate")),
                             lazy_optimizer<2>("LazyRMSPropUpdate", dense("RMSPropUpdate")),
                             lazy_optimizer<1>("LazyLionUpdate", dense("LionUpdate"))};
  ops.insert(ops.end(), lazy.begin(), lazy.end());
  return ops;
}

}  // namespace treadle::ops
