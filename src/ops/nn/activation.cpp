// Implements the activation functions of ONNX: kernels, inference and upgrades.
#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/decomposition.h"
#include "ops/functions.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/math/vectorized_unary.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::Unary;

// Parameters of the vectorized activation functions. Absent attributes have ONNX's default values.

constexpr float kSeluAlpha = 1.67326319217681884765625F, kSeluGamma = 1.05070102214813232421875F;

UnaryParameters alpha_one(const ShapeContext& c) { return {c.get_float("alpha", 1)}; }
UnaryParameters leaky_parameters(const ShapeContext& c) { return {c.get_float("alpha", 0.01F)}; }
UnaryParameters selu_parameters(const ShapeContext& c) { return {c.get_float("alpha", kSeluAlpha), c.get_float("gamma", kSeluGamma)}; }
UnaryParameters hard_sigmoid_parameters(const ShapeContext& c) { return {c.get_float("alpha", 0.2F), c.get_float("beta", 0.5F)}; }

// Activation functions of one element, for dtypes without a vectorized kernel: float64, and for Relu also integers.

template <UnaryParameters (*kRead)(const ShapeContext&)>
struct WithParameters {
  double a, b;
  explicit WithParameters(BindContext& c) {
    UnaryParameters p = kRead(c);
    a = static_cast<double>(p.a);
    b = static_cast<double>(p.b);
  }
};

double softplus_of(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

struct ReluFn {
  template <typename T>
  T operator()(T x) const {
    return x < T{0} ? T{0} : x;
  }
};
struct SigmoidFn {
  double operator()(double x) const { return 1 / (1 + std::exp(-x)); }
};
struct TanhFn {
  double operator()(double x) const { return std::tanh(x); }
};
struct SoftplusFn {
  double operator()(double x) const { return softplus_of(x); }
};
struct SoftsignFn {
  double operator()(double x) const { return x / (1 + std::fabs(x)); }
};
struct HardSwishFn {
  double operator()(double x) const { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); }
};
struct MishFn {
  double operator()(double x) const { return x * std::tanh(softplus_of(x)); }
};
struct GeluFn {
  double operator()(double x) const { return 0.5 * x * (1 + std::erf(x * 0.70710678118654752440)); }
};
struct GeluSlopeFn {
  double operator()(double x) const {
    return 0.5 * (1 + std::erf(x * 0.70710678118654752440)) + x * 0.39894228040143267794 * std::exp(-0.5 * x * x);
  }
};
struct GeluTanhFn {
  double operator()(double x) const { return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }
};

#define TREADLE_ACTIVATION(NAME, PARAMETERS, EXPRESSION)               \
  struct NAME : WithParameters<PARAMETERS> {                           \
    static NAME bind(BindContext& c) { return {{WithParameters(c)}}; } \
    double operator()(double x) const { return EXPRESSION; }           \
  }
TREADLE_ACTIVATION(LeakyReluFn, leaky_parameters, x < 0 ? a * x : x);
TREADLE_ACTIVATION(ThresholdedReluFn, alpha_one, x > a ? x : 0);  // for NaN the comparison is false, which gives 0
TREADLE_ACTIVATION(EluFn, alpha_one, x < 0 ? a * std::expm1(x) : x);
TREADLE_ACTIVATION(SeluFn, selu_parameters, b*(x < 0 ? a * std::expm1(x) : x));
TREADLE_ACTIVATION(CeluFn, alpha_one, std::max(x, 0.0) + std::min(0.0, a* std::expm1(x / a)));
TREADLE_ACTIVATION(HardSigmoidFn, hard_sigmoid_parameters, std::clamp(a* x + b, 0.0, 1.0));
TREADLE_ACTIVATION(SwishFn, alpha_one, x / (1 + std::exp(-a * x)));
#undef TREADLE_ACTIVATION

struct ShrinkFn {
  float lambd, bias;

  static ShrinkFn bind(BindContext& c) { return {c.get_float("lambd", 0.5F), c.get_float("bias", 0)}; }
  template <typename T>
  T operator()(T x) const {
    using C = std::conditional_t<std::is_same_v<T, float>, float, double>;
    auto v = static_cast<C>(x);
    if (v < -static_cast<C>(lambd)) return narrowed<T>(v + static_cast<C>(bias));
    if (v > static_cast<C>(lambd)) return narrowed<T>(v - static_cast<C>(bias));
    return T{0};
  }
  /// Converts a number to T. Integer types clamp it to their range.
  template <typename T, typename C>
  static T narrowed(C v) {
    if constexpr (std::is_integral_v<T>) {
      if (!(v >= static_cast<C>(std::numeric_limits<T>::lowest()))) return std::numeric_limits<T>::lowest();
      if (v >= static_cast<C>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    }
    return static_cast<T>(v);
  }
};

struct PReluFn {
  template <typename T>
  T operator()(T x, T slope) const {
    T factor = select(x < T{0}, slope, T{1});
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<uint64_t>(x) * static_cast<uint64_t>(factor));
    else
      return x * factor;
  }
};

// A kernel of Gelu for one value of the attribute `approximate`. It declines nodes with the other value.
template <bool kTanh, typename K>
struct GeluOf : K {
  static GeluOf bind(BindContext& c) { return {K::bind(c)}; }
  static std::string declines(const CreateContext& c) {
    std::string_view approximate = c.attributes().get_string("approximate", "none");
    if (approximate != "none" && approximate != "tanh")
      throw Error(ErrorCode::invalid_model, "approximate = \"" + std::string(approximate) + "\"; it must be none or tanh");
    return (approximate == "tanh") == kTanh ? "" : kTanh ? "for approximate = tanh" : "for approximate = none";
  }
};
template <bool kTanh, Unary kOp, typename F>
std::vector<KernelDef> gelu_kernels() {
  return built_kernel<GeluOf<kTanh, VectorizedUnary<float, kOp, no_parameters>>, float>("vectors") +
         built_kernel<GeluOf<kTanh, UnaryKernel<F, double>>, double>() +
         built_kernel<GeluOf<kTanh, VectorizedUnary<Float16, kOp, no_parameters>>, Float16>("vectors") +
         built_kernel<GeluOf<kTanh, VectorizedUnary<BFloat16, kOp, no_parameters>>, BFloat16>("vectors");
}

// Computes Clip. The bounds are scalar tensors, whose values may be known only during the run.
template <typename T>
struct Clip {
  int64_t n;
  bool has_min, has_max;

  static Clip bind(BindContext& c) {
    for (int i : {1, 2})
      if (c.has_input(i)) check_equal(c.num_elements(i), 1, i == 1 ? "elements of min" : "elements of max");
    return {c.num_elements(0), c.has_input(1), c.has_input(2)};
  }
  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    T* out = c.out<T>(0);
    using C = compute_type_t<T>;
    using Limits = std::numeric_limits<C>;
    constexpr bool kFloat = std::is_floating_point_v<C>;
    C low = has_min ? static_cast<C>(*c.in<T>(1)) : kFloat ? -Limits::infinity() : Limits::lowest();
    C high = has_max ? static_cast<C>(*c.in<T>(2)) : kFloat ? Limits::infinity() : Limits::max();
    parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      if constexpr (kFloat && !std::is_same_v<T, double>) {
        vectorized_unary(Unary::clip, {low, high}, in + begin, out + begin, end - begin);
      } else {
        TREADLE_ELEMENTWISE_LOOP
        for (int64_t i = begin; i < end; ++i) {
          T at_least = in[i] < low ? low : in[i];
          out[i] = at_least > high ? high : at_least;
        }
      }
    });
  }
};

// Before opset 11, the bounds were attributes. This upgrade makes them inputs.
void clip_bounds_to_inputs(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  DType dtype = graph.type(node.inputs[0]).dtype;
  std::pair<std::string_view, float> bounds[] = {{"min", node.attributes.get_float("min")}, {"max", node.attributes.get_float("max")}};
  bool given[] = {node.attributes.has("min"), node.attributes.has("max")};
  node.attributes.erase("min");
  node.attributes.erase("max");
  for (size_t i = 0; i < 2; ++i) {
    if (!given[i]) continue;
    ValueId bound;
    float value = bounds[i].second;
    if (dtype == DType::float32)
      bound = graph.add_constant(bounds[i].first, Tensor::scalar(value));
    else if (dtype == DType::float64)
      bound = graph.add_constant(bounds[i].first, Tensor::scalar(static_cast<double>(value)));
    else {
      ValueId number = graph.add_constant(bounds[i].first, Tensor::scalar(value));
      NodeId like = graph.add_node({.op_type = "CastLike", .inputs = {number, graph.node(id).inputs[0]}}, id);
      bound = graph.node(like).outputs[0];
    }
    if (graph.node(id).num_formal_inputs <= static_cast<int>(i) + 1) graph.resize_inputs(id, i + 2);
    graph.set_input(id, i + 1, bound);
  }
}

void infer_clip(InferContext& c) {
  for (int i : {1, 2})
    if (c.has_rank(i) && c.rank(i) > 0 && !(c.rank(i) == 1 && (c.shape(i)[0].is_const(1) || !c.shape(i)[0].is_const())))
      throw Error(ErrorCode::invalid_argument,
                  std::string(i == 1 ? "min" : "max") + " is " + to_string(c.input(i)) + "; it must be a scalar");
  c.set_output(0, c.input(0));
}

void infer_prelu(InferContext& c) {
  c.set_output(0, c.input(0));
  if (!c.has_rank(0) || !c.has_rank(1)) return;
  SymbolicShape both = broadcast(c.shape(0), c.shape(1));
  bool stretches_x = both.size() != c.shape(0).size();
  for (size_t i = 0; !stretches_x && i < both.size(); ++i)
    stretches_x = both[i].is_const() && c.shape(0)[i].is_const() && !(both[i] == c.shape(0)[i]);
  if (stretches_x)
    throw Error(ErrorCode::invalid_argument,
                "slope " + to_string(c.shape(1)) + " must stretch to X's shape " + to_string(c.shape(0)) + ", not the other way");
}

// Upgrades PRelu of opset 6, whose slope has one element, or one element per channel, [C]. A slope [C] gets trailing axes of extent 1, so
// that it broadcasts along the channels.
void prelu_channel_slopes(Graph& graph, NodeId id) {
  require_inputs(graph.node(id), 2);
  NodeWriter writer(graph, id, graph.node(id).name);
  const ValueId x = graph.node(id).inputs[0], slope = graph.node(id).inputs[1];
  const int x_rank = writer.rank(x), slope_rank = writer.rank(slope);
  if ((slope_rank >= 0 && slope_rank != 1) || writer.extent(slope, 0) == 1 || (x_rank >= 0 && x_rank <= 2)) return;
  // If the ranks are known only during the run, nodes compute how many axes follow the channels.
  ValueId missing = writer.op("Max", {writer.op("Sub", {writer.rank_of(x), writer.ints({2})}), writer.ints({0})});
  if (slope_rank < 0) {
    const ValueId is_vector = writer.op("Equal", {writer.rank_of(slope), writer.ints({1})});
    missing = writer.op("Mul", {missing, writer.cast(is_vector, DType::int64)});
  }
  graph.set_input(id, 1, writer.with_axes_behind(slope, missing));
}

void decompose_swiglu(Graph& graph, NodeId id) {
  ValueId gate = graph.node(id).inputs[0], linear = graph.node(id).inputs[1], y = graph.node(id).outputs[0];
  Attributes attributes{{"alpha", graph.node(id).attributes.get_float("alpha", 1)}};
  NodeId swish = graph.add_node({.op_type = "Swish", .inputs = {gate}, .attributes = std::move(attributes)}, id);
  NodeId product = graph.add_node({.op_type = "Mul", .inputs = {graph.node(swish).outputs[0], linear}}, id);
  graph.replace_uses(y, graph.node(product).outputs[0]);
  graph.remove_node(id);
}

void infer_swiglu(InferContext& c) {
  c.set_output(0, c.input(0));
  if (c.has_rank(0) && c.has_rank(1) && c.rank(0) != c.rank(1))
    throw Error(ErrorCode::invalid_argument,
                "A " + to_string(c.shape(0)) + " and B " + to_string(c.shape(1)) + " must have the same shape");
}

template <int kFlops>
OpDef activation(std::string_view name, std::vector<int> since, TypeSet types, std::vector<AttributeDef> attributes,
                 std::vector<KernelDef> kernels, std::vector<UpgradeStep> upgrade = {}) {
  return with_function_facts({.name = name,
                              .since = std::move(since),
                              .upgrade = std::move(upgrade),
                              .inputs = {{"X", types, "T"}},
                              .outputs = {{"Y", types, "T"}},
                              .attributes = std::move(attributes),
                              .infer = infer_same_as_input,
                              .cost = elementwise_cost<kFlops>,
                              .alias = {may_reuse(0, 0)},
                              .kernels = std::move(kernels)});
}

/// The derivative of Gelu, an operator of the treadle domain.
OpDef gelu_slope() {
  OpDef op = activation<36>("GeluSlope", {1}, TypeSet{DType::float32, DType::float64}, {},
                            built_kernel<VectorizedUnary<float, Unary::gelu_slope, no_parameters>, float>("vectors") +
                                built_kernel<UnaryKernel<GeluSlopeFn, double>, double>());
  op.domain = "treadle";
  // The + converts the lambda to a function pointer, which the small library for training needs (TrainingFunction).
  op.write_function = +[](FunctionBody& b) { b.give(0, write_gelu_slope(b, b.in(0))); };
  op.function_opset = +[](const Node&) { return 9; };
  return op;
}

OpDef clip() {
  return with_function_facts(
      {.name = "Clip",
       .since = {1, 6, 11, 12, 13},
       .upgrade = {{1, drop_consumed_inputs}, {6, clip_bounds_to_inputs}},
       .inputs = {{"input", kNumeric, "T"}, {"min", kNumeric, "T", Presence::optional}, {"max", kNumeric, "T", Presence::optional}},
       .outputs = {{"output", kNumeric, "T"}},
       .infer = infer_clip,
       .cost = elementwise_cost<2>,
       .alias = {may_reuse(0, 0)},
       .kernels =
           typed<Clip, float, double, Float16, BFloat16, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>()});
}

Gradients prelu_gradient(GradientContext& g) {
  const ValueId x = g.input(0), slope = g.input(1), dy = g.grad_output(0);
  const ValueId negative = g.op("Less", {x, g.scalar(0, x)});
  return {g.op("Where", {negative, g.mul(dy, slope), dy}), g.unbroadcast(masked(g, negative, g.mul(dy, x)), slope)};
}

Gradients shrink_gradient(GradientContext& g) {
  const ValueId x = g.input(0);
  const double lambda = static_cast<double>(g.attributes().get_float("lambd", 0.5F));
  const ValueId kept = g.op("Or", {g.op("Less", {x, g.scalar(-lambda, x)}), g.op("Greater", {x, g.scalar(lambda, x)})});
  return {masked(g, kept, g.grad_output(0))};
}

}  // namespace

namespace {

OpDef prelu() {
  constexpr TypeSet kTypes = kFloats | TypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64};
  return {.name = "PRelu",
          .since = {1, 6, 7, 9, 16},
          .upgrade = {{1, drop_consumed_inputs}, {6, prelu_channel_slopes}},
          .inputs = {{"X", kTypes, "T"}, {"slope", kTypes, "T"}},
          .outputs = {{"Y", kTypes, "T"}},
          .infer = infer_prelu,
          .cost = elementwise_cost<2>,
          .alias = {may_reuse(0, 0)},
          .kernels = binary_kernels<PReluFn, float, double, Float16, BFloat16, int32_t, int64_t, uint32_t, uint64_t>(),
          .gradient = prelu_gradient,
          .pointwise = true,
          .half = HalfFloats::float32};
}

OpDef swiglu() {
  return {.name = "SwiGLU",
          .since = {28},
          .inputs = {{"A", kFloats, "T"}, {"B", kFloats, "T"}},
          .outputs = {{"Y", kFloats, "T"}},
          .attributes = {{"alpha", 1.0F}},
          .infer = infer_swiglu,
          .decompose = decompose_swiglu};
}

}  // namespace

std::vector<OpDef> activation_ops() {
  const std::vector<UpgradeStep> from_opset_1 = {{1, drop_consumed_inputs}};
  const std::vector<AttributeDef> alpha = {{"alpha", 1.0F}};
  std::vector<OpDef> ops = {
      activation<1>("Relu", {1, 6, 13, 14}, kFloats | kSignedIntegers, {},
                    vectorized_kernels<Unary::relu, ReluFn>() + unary_kernels<ReluFn, int8_t, int16_t, int32_t, int64_t>(), from_opset_1),
      activation<2>("LeakyRelu", {1, 6, 16}, kFloats, {{"alpha", 0.01F}},
                    vectorized_kernels<Unary::leaky_relu, LeakyReluFn, leaky_parameters>(), from_opset_1),
      activation<1>("ThresholdedRelu", {1, 10, 22}, kFloats, alpha,
                    vectorized_kernels<Unary::thresholded_relu, ThresholdedReluFn, alpha_one>()),
      activation<17>("Elu", {1, 6, 22}, kFloats, alpha, vectorized_kernels<Unary::elu, EluFn, alpha_one>(), from_opset_1),
      activation<17>("Selu", {1, 6, 22}, kFloats, {{"alpha", kSeluAlpha}, {"gamma", kSeluGamma}},
                     vectorized_kernels<Unary::selu, SeluFn, selu_parameters>(), from_opset_1),
      activation<20>("Celu", {12, 28}, kFloats, alpha, vectorized_kernels<Unary::celu, CeluFn, alpha_one>()),
      activation<18>("Sigmoid", {1, 6, 13}, kFloats, {}, vectorized_kernels<Unary::sigmoid, SigmoidFn>(), from_opset_1),
      activation<4>("HardSigmoid", {1, 6, 22}, kFloats, {{"alpha", 0.2F}, {"beta", 0.5F}},
                    vectorized_kernels<Unary::hard_sigmoid, HardSigmoidFn, hard_sigmoid_parameters>(), from_opset_1),
      activation<5>("HardSwish", {14, 22}, kFloats, {}, vectorized_kernels<Unary::hard_swish, HardSwishFn>()),
      activation<19>("Swish", {24}, kFloats, alpha, vectorized_kernels<Unary::silu, SwishFn, alpha_one>()),
      activation<40>("Mish", {18, 22}, kFloats, {}, vectorized_kernels<Unary::mish, MishFn>()),
      activation<24>("Gelu", {20}, kFloats, {{"approximate", "none"}},
                     gelu_kernels<false, Unary::gelu, GeluFn>() + gelu_kernels<true, Unary::gelu_tanh, GeluTanhFn>()),
      activation<30>("Softplus", {1, 22}, kFloats, {}, vectorized_kernels<Unary::softplus, SoftplusFn>()),
      activation<3>("Softsign", {1, 22}, kFloats, {}, vectorized_kernels<Unary::softsign, SoftsignFn>()),
      activation<15>("Tanh", {1, 6, 13}, kFloats, {}, vectorized_kernels<Unary::tanh, TanhFn>(), from_opset_1),
      activation<2>("Shrink", {9}, kNumeric, {{"bias", 0.0F}, {"lambd", 0.5F}},
                    unary_kernels<ShrinkFn, float, double, Float16, BFloat16, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t,
                                  uint32_t, uint64_t>()),
      clip(),
      prelu(),
      swiglu(),
      gelu_slope(),
  };
  return with_gradients(std::move(ops), {{"Shrink", shrink_gradient}});
}

}  // namespace treadle::ops
