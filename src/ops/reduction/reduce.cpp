// Implements ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceSumSquare, ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp
// (ONNX, opset 28).
#include "kernels/reduce/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/reduction/axes.h"
#include "treadle/error.h"

namespace treadle::ops {

uint32_t reduced_axes(const BindContext& c) {
  const int rank = c.shape(0).rank();
  const int64_t count = c.has_input(1) ? c.value_count(1) : 0;
  if (count == 0) return c.get_int("noop_with_empty_axes") != 0 ? 0 : (1U << rank) - 1U;
  uint32_t axes = 0;
  for (int64_t i = 0; i < count; ++i) axes |= 1U << normalize_axis(c.value_at(1, i), rank);
  return axes;
}

namespace {

using kernels::Reduce;

template <Reduce kOp>
struct Of {
  template <typename T>
  struct Kernel {
    kernels::ReducePlan plan;
    static Kernel bind(BindContext& c) { return {kernels::plan_reduce(c.shape(0).dims(), reduced_axes(c))}; }
    void run(RunContext& c) const {
      // Booleans are reduced as bytes, where false is 0 and true is 1.
      using Number = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
      if (std::is_same_v<T, bool> && plan.reduced.size == 0) {  // the minimum of no bytes would be 255
        std::fill_n(c.out<T>(0), plan.kept.size, static_cast<T>(kOp == Reduce::min));
        return;
      }
      kernels::reduce<Number>(kOp, plan, c.in<Number>(0), c.out<Number>(0), c.pool());
    }
  };
};

// Inference.

/// Reduces a vector whose elements are known before the run. Models do this when they compute shapes.
void propagate(InferContext& c, Dim (*fn)(const Dim& a, const Dim& b)) {
  auto values = c.known(0);
  if (!fn || !values || values->empty() || !is_integer(c.dtype(0)) || c.rank(0) != 1) return;
  const auto result =
      or_unknown([&]() -> std::optional<Dim> { return std::accumulate(values->begin() + 1, values->end(), values->front(), fn); });
  if (result) c.set_known(0, {*result});
}

void infer(InferContext& c, Dim (*fn)(const Dim& a, const Dim& b)) {
  bool keepdims = c.get_int("keepdims", 1) != 0;
  bool noop = c.get_int("noop_with_empty_axes") != 0;
  if (!c.has_rank(0)) {
    const bool is_whole = !noop && !keepdims && !c.has_input(1);  // all axes: a scalar, for any rank
    return is_whole ? c.set_output(0, c.dtype(0), SymbolicShape{}) : c.set_output_dtype(0, c.dtype(0));
  }
  std::vector<bool> reduced(c.shape(0).size(), false);
  if (c.has_input(1)) {
    auto axes = c.known_ints(1);
    if (!axes && c.has_rank(1) && c.rank(1) == 1 && c.shape(1)[0].is_const(0)) axes.emplace();
    if (!axes) {
      // The axes are unknown before the run, but their number may be known.
      bool has_count = c.has_rank(1) && c.rank(1) == 1 && c.shape(1)[0].is_const() && !c.shape(1)[0].is_const(0);
      if (keepdims) return c.set_output(0, c.dtype(0), c.data_dependent_shape("reduced", c.rank(0)));
      if (!has_count) return c.set_output_dtype(0, c.dtype(0));
      return c.set_output(0, c.dtype(0),
                          c.data_dependent_shape("reduced", std::max(0, c.rank(0) - static_cast<int>(c.shape(1)[0].value()))));
    }
    for (int64_t axis : *axes) reduced[static_cast<size_t>(normalize_axis(axis, c.rank(0)))] = true;
    if (axes->empty() && !noop) reduced.assign(reduced.size(), true);
  } else if (!noop) {
    reduced.assign(reduced.size(), true);
  }
  SymbolicShape shape;
  for (size_t axis = 0; axis < reduced.size(); ++axis) {
    if (!reduced[axis])
      shape.push_back(c.shape(0)[axis]);
    else if (keepdims)
      shape.push_back(Dim(1));
  }
  c.set_output(0, c.dtype(0), std::move(shape));
  if (reduced.size() == 1 && reduced[0]) propagate(c, fn);
}

void infer_plain(InferContext& c) { infer(c, nullptr); }
void infer_sum(InferContext& c) {
  infer(c, [](const Dim& a, const Dim& b) { return a + b; });
}
void infer_prod(InferContext& c) {
  infer(c, [](const Dim& a, const Dim& b) { return a * b; });
}
void infer_max(InferContext& c) { infer(c, maximum); }
void infer_min(InferContext& c) { infer(c, minimum); }

Cost cost(const ShapeContext& c) {
  double written = static_cast<double>(c.output_shape(0).num_elements()) * static_cast<double>(bits_of(c.output_dtype(0))) / 8;
  return {static_cast<double>(c.num_elements(0)), c.size_bytes(0) + written};
}

// Before opset 18 (13 for ReduceSum), `axes` was an attribute. This upgrade makes it an input.
void axes_to_input(Graph& graph, NodeId id) {
  Attributes& attributes = graph.node(id).attributes;
  if (!attributes.has("axes")) return;
  std::vector<int64_t> axes = attributes.get_ints("axes");
  attributes.erase("axes");
  if (axes.empty()) return;
  graph.add_operand(id, graph.add_constant("axes", Tensor::vector<int64_t>(axes)));
}

OpDef reduction(std::string_view name, std::vector<int> since, int last_with_attribute, TypeSet types, void (*infer)(InferContext&),
                std::vector<KernelDef> kernels) {
  return {.name = name,
          .since = std::move(since),
          .upgrade = {{last_with_attribute, axes_to_input}},
          .inputs = {{"data", types, "T"}, {"axes", kInt64, "", Presence::optional}},
          .outputs = {{"reduced", types, "T"}},
          .attributes = {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{0}}},
          .infer = infer,
          .cost = cost,
          .kernels = std::move(kernels),
          .value_inputs = {1},
          .half = HalfFloats::float32_by_itself};
}

template <Reduce kOp>
std::vector<KernelDef> number_kernels() {
  return typed<Of<kOp>::template Kernel, float, double, Float16, BFloat16, int64_t, int32_t, uint32_t, uint64_t>();
}

/// Returns true if the axes are known only during the run, because nodes compute them. Returns false if the input `axes` is absent,
/// constant, or statically empty.
bool has_computed_axes(GradientContext& g) {
  if (g.input(1) == kNoValue || g.graph().value(g.input(1)).is_constant()) return false;
  const Type type = g.type(g.input(1));
  return !type.is_static() || type.static_shape().num_elements() != 0;
}

/// Returns the axes that the node reduces. @throws Error(not_implemented) if nodes compute them, or if they are all axes and the rank is
/// unknown.
std::vector<int64_t> reduced_axes(GradientContext& g) {
  std::vector<int64_t> axes;
  if (has_computed_axes(g)) throw Error(ErrorCode::not_implemented, "the gradient of this reduction needs constant axes");
  if (const Tensor* constant = g.input(1) != kNoValue ? g.graph().constant_tensor(g.input(1)) : nullptr) {
    axes.assign(constant->data<int64_t>(), constant->data<int64_t>() + constant->num_elements());
  }
  if (axes.empty() && g.attributes().get_int("noop_with_empty_axes", 0) == 0)
    for (int axis = 0; axis < rank_of(g, g.input(0)); ++axis) axes.push_back(axis);
  if (std::any_of(axes.begin(), axes.end(), [](int64_t axis) { return axis < 0; }))
    for (int64_t& axis : axes) axis = normalize_axis(axis, rank_of(g, g.input(0)));
  return axes;
}

/// Inserts the reduced axes with extent 1, into an output or its gradient, if the node did not keep these axes.
ValueId with_reduced_axes(GradientContext& g, ValueId y) {
  if (g.attributes().get_int("keepdims", 1) != 0) return y;
  if (!g.type(g.input(0)).has_rank() && g.type(y).has_rank() && g.type(y).rank() == 0) return y;  // a scalar broadcasts anyway
  // Y has fewer axes than X. So the input `axes`, which is known only during the run, names the axes to insert.
  if (has_computed_axes(g) && rank_of(g, y) < rank_of(g, g.input(0))) return g.op("Unsqueeze", {y, g.input(1)});
  std::vector<int64_t> axes = reduced_axes(g);
  return axes.empty() ? y : g.op("Unsqueeze", {y, g.ints(std::move(axes))});
}

ValueId with_reduced_axes(GradientContext& g) { return with_reduced_axes(g, g.grad_output(0)); }

Gradients reduce_sum_gradient(GradientContext& g) { return {expand_like(g, with_reduced_axes(g), g.input(0))}; }

Gradients reduce_mean_gradient(GradientContext& g) {
  const ValueId count = elements_per_element(g, g.input(0), g.output(0));
  return {expand_like(g, g.div(with_reduced_axes(g), count), g.input(0))};
}

Gradients reduce_sum_square_gradient(GradientContext& g) {
  const ValueId x = g.input(0);
  return {g.mul(g.mul(x, g.scalar(2, x)), with_reduced_axes(g))};
}

Gradients reduce_l1_gradient(GradientContext& g) { return {g.mul(g.op("Sign", {g.input(0)}), with_reduced_axes(g))}; }

// Uses dX = dY x / y, but 0 where y is 0.
Gradients reduce_l2_gradient(GradientContext& g) {
  const ValueId y = g.output(0), none = g.op("Equal", {y, g.scalar(0, y)});
  const ValueId factor = g.op("Where", {none, g.scalar(0, y), g.div(g.grad_output(0), g.op("Where", {none, g.scalar(1, y), y}))});
  return {g.mul(g.input(0), with_reduced_axes(g, factor))};
}

Gradients reduce_log_sum_gradient(GradientContext& g) {
  return {expand_like(g, with_reduced_axes(g, g.div(g.grad_output(0), g.op("Exp", {g.output(0)}))), g.input(0))};
}

Gradients reduce_log_sum_exp_gradient(GradientContext& g) {
  return {g.mul(g.op("Exp", {g.sub(g.input(0), with_reduced_axes(g, g.output(0)))}), with_reduced_axes(g))};
}

/// Returns for each element the product of all other elements, for axes known only during the run. This is the total product divided by the
/// element. If one element is 0, only its own result is not 0; if several elements are 0, all results are 0.
ValueId product_of_others(GradientContext& g) {
  const ValueId x = g.input(0);
  auto reduced = [&](std::string_view op, ValueId value) {
    return g.op(op, {value, g.input(1)},
                {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", g.attributes().get_int("noop_with_empty_axes", 0)}});
  };
  const ValueId zero = g.scalar(0, x), one = g.scalar(1, x), is_zero = g.op("Equal", {x, zero}), rest = g.op("Where", {is_zero, one, x});
  const ValueId product = reduced("ReduceProd", rest);
  const ValueId zeros = reduced("ReduceSum", g.op("Cast", {is_zero}, {{"to", static_cast<int64_t>(g.type(x).dtype)}}));
  const ValueId only_zero = g.op("Where", {g.op("Equal", {zeros, one}), product, zero});
  const ValueId without = g.op("Where", {g.op("Equal", {zeros, zero}), g.div(product, rest), zero});
  return g.op("Where", {is_zero, only_zero, without});
}

// Differentiates axis by axis. The product of all other elements is the product of those before the element times that of those after it.
Gradients reduce_prod_gradient(GradientContext& g) {
  const ValueId x = g.input(0);
  if (has_computed_axes(g)) return {g.mul(product_of_others(g), with_reduced_axes(g))};
  const std::vector<int64_t> axes = reduced_axes(g);
  std::vector<ValueId> products{x};
  for (size_t i = 0; i + 1 < axes.size(); ++i) products.push_back(g.op("ReduceProd", {products.back(), g.ints({axes[i]})}));
  ValueId dx = with_reduced_axes(g);
  for (size_t i = axes.size(); i-- > 0;) {
    const ValueId axis = g.constant(Tensor::scalar<int64_t>(axes[i]));
    auto others = [&](int64_t reverse) { return g.op("CumProd", {products[i], axis}, {{"exclusive", int64_t{1}}, {"reverse", reverse}}); };
    dx = g.mul(dx, g.mul(others(0), others(1)));
  }
  return {dx};
}

// If several elements equal the extremum, they share its gradient evenly.
Gradients reduce_extremum_gradient(GradientContext& g) {
  const ValueId x = g.input(0);
  const ValueId taken =
      g.op("Cast", {g.op("Equal", {x, with_reduced_axes(g, g.output(0))})}, {{"to", static_cast<int64_t>(g.type(x).dtype)}});
  std::vector<ValueId> inputs{taken};
  if (g.input(1) != kNoValue) inputs.push_back(g.input(1));
  const ValueId sharing = g.op("ReduceSum", std::move(inputs),
                               {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", g.attributes().get_int("noop_with_empty_axes", 0)}});
  return {g.mul(taken, g.div(with_reduced_axes(g), sharing))};
}

}  // namespace

std::vector<OpDef> reduce_ops() {
  constexpr TypeSet kTypes = kFloats | TypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64};
  constexpr TypeSet kOrdered = kTypes | TypeSet{DType::int8, DType::uint8, DType::boolean};
  const std::vector<int> since = {1, 11, 13, 18}, logarithmic = {1, 11, 13, 18, 28}, ordered = {1, 11, 12, 13, 18, 20};
  std::vector<OpDef> ops = {
      reduction("ReduceSum", {1, 11, 13}, 11, kTypes, infer_sum, number_kernels<Reduce::sum>()),
      reduction("ReduceMean", since, 13, kTypes, infer_plain, number_kernels<Reduce::mean>()),
      reduction("ReduceProd", since, 13, kTypes, infer_prod, number_kernels<Reduce::prod>()),
      reduction("ReduceMax", ordered, 13, kOrdered, infer_max,
                number_kernels<Reduce::max>() + typed<Of<Reduce::max>::Kernel, int8_t, uint8_t, bool>()),
      reduction("ReduceMin", ordered, 13, kOrdered, infer_min,
                number_kernels<Reduce::min>() + typed<Of<Reduce::min>::Kernel, int8_t, uint8_t, bool>()),
      reduction("ReduceSumSquare", since, 13, kTypes, infer_plain, number_kernels<Reduce::sum_square>()),
      reduction("ReduceL1", since, 13, kTypes, infer_plain, number_kernels<Reduce::l1>()),
      reduction("ReduceL2", since, 13, kTypes, infer_plain, number_kernels<Reduce::l2>()),
      // Integers are accepted, because they were allowed before opset 28.
      reduction("ReduceLogSum", logarithmic, 13, kTypes, infer_plain, number_kernels<Reduce::log_sum>()),
      reduction("ReduceLogSumExp", logarithmic, 13, kTypes, infer_plain, number_kernels<Reduce::log_sum_exp>()),
  };
  for (OpDef& op : ops)
    if (op.name == "ReduceSum" || op.name == "ReduceMean" || op.name == "ReduceMax") op.channels_last.how = ChannelsLast::How::reduction;
  ops[1].channels_last.op = "NhwcGlobalAveragePool";
  return with_gradients(std::move(ops), {{"ReduceSum", reduce_sum_gradient},
                                         {"ReduceMean", reduce_mean_gradient},
                                         {"ReduceMax", reduce_extremum_gradient},
                                         {"ReduceMin", reduce_extremum_gradient},
                                         {"ReduceProd", reduce_prod_gradient},
                                         {"ReduceSumSquare", reduce_sum_square_gradient},
                                         {"ReduceL1", reduce_l1_gradient},
                                         {"ReduceL2", reduce_l2_gradient},
                                         {"ReduceLogSum", reduce_log_sum_gradient},
                                         {"ReduceLogSumExp", reduce_log_sum_exp_gradient}});
}

}  // namespace treadle::ops
