// Implements LayerNormalization and RMSNormalization. They normalize rows, which consist of the last axes.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/logging.h"
#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/movement/copy.h"
#include "kernels/normalization/norm.h"
#include "ops/checks.h"
#include "ops/decomposition.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Returns the dtype of the statistics (mean and deviation), in the computation and in the outputs.
DType stash_dtype(const Attributes& attributes) {
  const int64_t stash_type = attributes.get_int("stash_type", 1);
  if (stash_type == 1) return DType::float32;
  if (stash_type == 16) return DType::bfloat16;
  throw Error(ErrorCode::invalid_argument, fmt::format("stash_type is {}, not 1 (float32) or 16 (bfloat16)", stash_type));
}

// A scale or bias as the kernels read it: one value per element of a row. Smaller ones are broadcast into scratch memory.
struct RowParameter {
  bool present = false, stretched = false;
  Wide wide;
  int64_t stretched_offset = 0;
  kernels::CopyPlan plan;

  template <typename T>
  static RowParameter make(const BindContext& c, int input, int axis, ScratchLayout& layout) {
    RowParameter p;
    if (!c.has_input(input)) return p;
    p.present = true;
    const Shape &x = c.shape(0), &shape = c.shape(input);
    if (shape.rank() > x.rank())
      throw Error(ErrorCode::invalid_argument, fmt::format("a scale or bias {} has more axes than {}", to_string(shape), to_string(x)));
    const auto row = x.dims().subspan(static_cast<size_t>(axis));
    int64_t length = 1;
    for (int64_t extent : row) length *= extent;
    p.wide = reserve_wide<T>(layout, shape.num_elements());
    // Skips leading extents of 1. They belong to axes that are not normalized.
    auto own = shape.dims();
    while (own.size() > row.size() && own[0] == 1) own = own.subspan(1);
    if (own.size() > row.size())
      throw Error(ErrorCode::not_implemented,
                  fmt::format("a scale or bias {} that differs between the rows of {} normalised from axis {} on", to_string(shape),
                              to_string(x), axis));
    // The row may have several axes and the parameter only one, with all elements of the row. onnxruntime accepts this, too.
    if (std::ranges::equal(own, row) || (own.size() == 1 && own[0] == length)) return p;
    p.stretched = true;
    p.plan = kernels::plan_expand(own, row);
    p.stretched_offset = layout.take(static_cast<size_t>(length) * sizeof(compute_type_t<T>));
    return p;
  }
  template <typename T>
  const compute_type_t<T>* values(RunContext& c, int input) const {
    if (!present) return nullptr;
    const auto* own = widen(c, c.in<T>(input), wide);
    if (!stretched) return own;
    auto* dst = reinterpret_cast<compute_type_t<T>*>(scratch_at(c, stretched_offset));
    kernels::strided_copy(plan, sizeof(compute_type_t<T>), own, dst, c.pool());
    return dst;
  }
};

void infer_layer_norm(InferContext& c) {
  const DType stash = stash_dtype(c.attributes());
  c.set_output(0, c.input(0));
  for (int i : {1, 2}) {
    if (!c.has_output(i)) continue;
    if (!c.has_rank(0)) {
      c.set_output_dtype(i, stash);
      continue;
    }
    const auto axis = c.axis("axis", -1, c.rank(0));
    SymbolicShape reduced = c.shape(0);
    std::fill(reduced.begin() + axis, reduced.end(), Dim(1));
    c.set_output(i, stash, std::move(reduced));
  }
}

template <typename T>
struct LayerNormalization {
  using C = compute_type_t<T>;
  int64_t rows, length;
  C epsilon;
  Wide x, y;
  RowParameter scale, bias;
  bool has_mean, has_deviation, stash_is_narrow;
  int64_t mean_offset, deviation_offset;

  static LayerNormalization bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    const int axis = c.axis("axis", -1, shape.rank());
    LayerNormalization k{shape.product(0, axis),
                         shape.product(axis, shape.rank()),
                         static_cast<C>(c.get_float("epsilon", 1e-5f)),
                         {},
                         {},
                         {},
                         {},
                         c.has_output(1),
                         c.has_output(2),
                         stash_dtype(c.node().attributes) != DType::float32,
                         0,
                         0};
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, shape.num_elements());
    k.y = reserve_wide<T>(layout, shape.num_elements());
    k.scale = RowParameter::make<T>(c, 1, axis, layout);
    k.bias = RowParameter::make<T>(c, 2, axis, layout);
    k.mean_offset = layout.take(static_cast<size_t>(k.rows) * sizeof(C));
    k.deviation_offset = layout.take(static_cast<size_t>(k.rows) * sizeof(C));
    c.request_scratch(layout.total());
    return k;
  }
  // Returns memory for statistics. For rows of floats, it is the output itself if that is float32.
  C* statistics(RunContext& c, bool present, int output, int64_t offset) const {
    if (!present) return nullptr;
    if (std::is_same_v<C, float> && !stash_is_narrow) return c.out<C>(output);
    return reinterpret_cast<C*>(scratch_at(c, offset));
  }
  void finish_statistics(RunContext& c, const C* from, int output) const {
    if (from == nullptr) return;
    if (stash_is_narrow)
      convert_array(from, c.out<BFloat16>(output), rows, nullptr);
    else if constexpr (!std::is_same_v<C, float>)
      convert_array(from, c.out<float>(output), rows, nullptr);
  }
  void run(RunContext& c) const {
    const C* in = widen(c, c.in<T>(0), x);
    const C *factor = scale.values<T>(c, 1), *addend = bias.values<T>(c, 2);
    C *mean = statistics(c, has_mean, 1, mean_offset), *deviation = statistics(c, has_deviation, 2, deviation_offset);
    kernels::layer_norm<C>(rows, length, in, factor, addend, epsilon, wide_output(c, c.out<T>(0), y), mean, deviation, c.pool());
    narrow(c, y, c.out<T>(0));
    finish_statistics(c, mean, 1);
    finish_statistics(c, deviation, 2);
  }
};

// X and scale may have different dtypes. Y has that of scale.
void infer_rms_norm(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(1));
  c.set_output(0, c.dtype(1), c.shape(0));
}

template <typename T>
struct RMSNormalization {
  using C = compute_type_t<T>;
  int64_t rows, length;
  C epsilon;
  Wide x, y;
  RowParameter scale;

  static std::string declines(const CreateContext& c) {
    return c.dtype(0) == c.dtype(1) ? std::string() : "X and scale are of different types";
  }
  static RMSNormalization bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    const int axis = c.axis("axis", -1, shape.rank());
    RMSNormalization k{
        shape.product(0, axis), shape.product(axis, shape.rank()), static_cast<C>(c.get_float("epsilon", 1e-5f)), {}, {}, {}};
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, shape.num_elements());
    k.y = reserve_wide<T>(layout, shape.num_elements());
    k.scale = RowParameter::make<T>(c, 1, axis, layout);
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const C* in = widen(c, c.in<T>(0), x);
    const C* factor = scale.values<T>(c, 1);
    kernels::rms_norm<C>(rows, length, in, factor, epsilon, wide_output(c, c.out<T>(0), y), c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

// Casts X to the dtype of scale, which is also that of the result. This loses precision only if X is wider.
void cast_to_scale(Graph& graph, NodeId id) {
  const DType x = graph.type(graph.node(id).inputs[0]).dtype, scale = graph.type(graph.node(id).inputs[1]).dtype;
  if (x == scale || x == DType::undefined || scale == DType::undefined) return;
  const bool widens = bits_of(x) > bits_of(scale);
  // If X is wider, X and scale are both in X's dtype for the computation, and the result is cast.
  const DType common = widens ? x : scale;
  auto cast = [&](ValueId value, DType to) {
    const NodeId made = graph.add_node({.op_type = "Cast", .inputs = {value}, .attributes = {{"to", static_cast<int64_t>(to)}}}, id);
    return graph.node(made).outputs[0];
  };
  ValueId values[2] = {graph.node(id).inputs[0], graph.node(id).inputs[1]};
  if (x != common) values[0] = cast(values[0], common);
  if (scale != common) values[1] = cast(values[1], common);
  const NodeId normalized =
      graph.add_node({.op_type = "RMSNormalization", .inputs = {values[0], values[1]}, .attributes = graph.node(id).attributes}, id);
  const ValueId result = scale == common ? graph.node(normalized).outputs[0] : cast(graph.node(normalized).outputs[0], scale);
  graph.replace_uses(graph.node(id).outputs[0], result);
  graph.remove_node(id);
}

// Returns true if a scale or bias may differ between rows. `normalized`
// is the number of last axes that form a row; 0 if it is unknown.
bool may_differ_between_rows(const Graph& graph, ValueId parameter, int normalized) {
  if (parameter == kNoValue) return false;
  const Type& type = graph.type(parameter);
  if (!type.has_rank()) return true;
  const int leading = type.rank() - std::max(normalized, 1);
  return leading > 0 && (normalized == 0 || std::any_of(type.shape->begin(), type.shape->begin() + leading,
                                                        [](const Dim& extent) { return !extent.is_const(1); }));
}

// Returns true if a scale or bias surely broadcasts to the shape of x. @throws Error(invalid_model) if it surely does not.
bool keeps_shape(const Graph& graph, ValueId x_value, ValueId parameter) {
  if (parameter == kNoValue) return true;
  const Type &x = graph.type(x_value), &given = graph.type(parameter);
  if (!x.has_rank() || !given.has_rank()) return false;
  bool keeps = true, fits = given.rank() <= x.rank();
  for (size_t behind = 1; fits && behind <= given.shape->size(); ++behind) {
    const Dim &own = (*given.shape)[given.shape->size() - behind], &extent = (*x.shape)[x.shape->size() - behind];
    keeps = keeps && (own.is_const(1) || own == extent);
    fits = own.is_const(1) || !own.is_const() || !extent.is_const() || own == extent;
  }
  if (!fits)
    throw Error(ErrorCode::invalid_model, fmt::format("a scale or bias {} cannot be stretched to {}", to_string(given), to_string(x)));
  return keeps;
}

// If the scale or bias differs between rows, replaces the node by a normalization with scale 1, followed by a Mul and an Add.
void part_from_parameters_of_rows(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Type& x = graph.type(node.inputs[0]);
  const int64_t axis = node.attributes.get_int("axis", -1);
  const int normalized = x.has_rank()                    ? x.rank() - normalize_axis(axis, x.rank())
                         : axis < 0 && axis >= -kMaxRank ? static_cast<int>(-axis)
                                                         : 0;
  const std::vector<ValueId> parameters(node.inputs.begin() + 1, node.inputs.end()), outputs = node.outputs;
  if (std::ranges::none_of(parameters, [&](ValueId v) { return may_differ_between_rows(graph, v, normalized); })) return;
  const ValueId x_value = node.inputs[0];
  bool keeps = true;
  for (ValueId parameter : parameters) keeps = keeps_shape(graph, x_value, parameter) && keeps;
  NodeWriter writer(graph, id, node.name);
  const ValueId plain_scale = writer.scalar(1, parameters[0]);
  const NodeId plain = graph.add_node({.op_type = node.op_type,
                                       .inputs = {node.inputs[0], plain_scale},
                                       .attributes = node.attributes,
                                       .num_outputs = static_cast<int>(outputs.size())},
                                      id);
  ValueId y = graph.node(plain).outputs[0];
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i] == kNoValue) continue;
    const NodeId step = graph.add_node(
        {.op_type = i == 0 ? "Mul" : "Add", .inputs = {y, parameters[i]}, .name = node.name + (i == 0 ? "/scaled" : "/shifted")}, id);
    y = graph.node(step).outputs[0];
  }
  // A result larger than x is an error, which this Reshape to the shape of x reports.
  if (!keeps) y = writer.op("Reshape", {y, writer.op("Shape", {x_value})}, {{"allowzero", int64_t{1}}});
  graph.replace_uses(outputs[0], y);
  for (size_t i = 1; i < outputs.size(); ++i)
    if (outputs[i] != kNoValue) graph.replace_uses(outputs[i], graph.node(plain).outputs[i]);
  graph.remove_node(id);
}

void decompose_rms_norm(Graph& graph, NodeId id) {
  part_from_parameters_of_rows(graph, id);
  if (graph.is_alive(id)) cast_to_scale(graph, id);
}

// In opsets before 17, LayerNormalization is onnxruntime's own operator. onnxruntime ignores unknown attributes ("epsion" in its test
// models).
void drop_unknown_attributes(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  std::vector<std::string> unknown;
  for (const auto& [name, value] : node.attributes)
    if (std::ranges::none_of(node.op->attributes, [&](const AttributeDef& known) { return known.name == name; })) unknown.push_back(name);
  for (const std::string& name : unknown) {
    TREADLE_LOG(warning, "{}: the attribute \"{}\" is not one of the operator's; it is ignored, as onnxruntime does", describe(node), name);
    node.attributes.erase(name);
  }
}

// For a row of n elements, let xhat = (x - mean) / std and d = dy scale. Then dx = (d - mean(d) - xhat mean(d xhat)) / std. The outputs
// mean and 1 / std have the derivatives 1 / n and -xhat / (n std^2).
Gradients layer_normalization_gradient(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), scale = widened(g, g.input(1)), bias = g.input(2), dy = widened(g, g.grad_output(0));
  Gradients result = gradients::norm_of_rows(g, "LayerNormalizationGrad", dy, x, scale, bias);
  const bool shows_statistics = g.grad_output(1) != kNoValue || g.grad_output(2) != kNoValue;
  if (!result.empty() && !shows_statistics) return narrowed(g, std::move(result));
  const int rank = rank_of(g, x);
  std::vector<int64_t> axes;
  for (int axis = normalize_axis(g.attributes().get_int("axis", -1), rank); axis < rank; ++axis) axes.push_back(axis);
  auto mean = [&](ValueId value) { return g.op("ReduceMean", {value, g.ints(axes)}); };
  const ValueId centered = g.sub(x, mean(x));
  const ValueId epsilon = g.scalar(static_cast<double>(g.attributes().get_float("epsilon", 1e-5F)), x);
  const ValueId deviation = g.op("Sqrt", {g.add(mean(g.mul(centered, centered)), epsilon)});
  const ValueId normalized = g.div(centered, deviation);
  if (result.empty() && dy != kNoValue) {
    result.resize(3, kNoValue);
    const ValueId d = g.mul(dy, scale);
    result[0] = g.div(g.sub(g.sub(d, mean(d)), g.mul(normalized, mean(g.mul(d, normalized)))), deviation);
    result[1] = g.unbroadcast(g.mul(dy, normalized), scale);
    if (bias != kNoValue) result[2] = g.unbroadcast(dy, bias);
  }
  result.resize(3, kNoValue);
  for (size_t i : {1, 2}) {
    ValueId flow = g.grad_output(i);
    if (flow == kNoValue) continue;
    flow = g.op("Cast", {flow}, {{"to", static_cast<int64_t>(g.type(x).dtype)}});
    const ValueId length = elements_per_element(g, x, flow);
    ValueId spread = expand_like(g, g.div(flow, length), x);
    if (i == 2) spread = g.neg(g.div(g.mul(spread, normalized), g.mul(deviation, deviation)));
    result[0] = result[0] == kNoValue ? spread : g.add(result[0], spread);
  }
  return narrowed(g, std::move(result));
}

// For a row, let n = x / rms and d = dy scale. Then dx = (d - n mean(d n)) / rms.
Gradients rms_normalization_gradient(GradientContext& g) {
  const ValueId x = widened(g, g.input(0)), scale = widened(g, g.input(1)), dy = widened(g, g.grad_output(0));
  if (Gradients whole = gradients::norm_of_rows(g, "RMSNormalizationGrad", dy, x, scale, kNoValue); !whole.empty())
    return narrowed(g, std::move(whole));
  const int rank = rank_of(g, x);
  std::vector<int64_t> axes;
  for (int axis = normalize_axis(g.attributes().get_int("axis", -1), rank); axis < rank; ++axis) axes.push_back(axis);
  auto mean = [&](ValueId value) { return g.op("ReduceMean", {value, g.ints(axes)}); };
  const ValueId epsilon = g.scalar(static_cast<double>(g.attributes().get_float("epsilon", 1e-5F)), x);
  const ValueId root = g.op("Sqrt", {g.add(mean(g.mul(x, x)), epsilon)});
  const ValueId n = g.div(x, root), d = g.mul(dy, scale);
  return narrowed(g, {g.div(g.sub(d, g.mul(n, mean(g.mul(d, n)))), root), g.unbroadcast(g.mul(dy, n), scale)});
}

}  // namespace

std::vector<OpDef> row_normalization_ops() {
  constexpr TypeSet kStash{DType::float32, DType::bfloat16};
  // ONNX added LayerNormalization in opset 17. Exporters also write it into models of older opsets, which onnxruntime accepts.
  return {{.name = "LayerNormalization",
           .since = {1, 17},
           .upgrade = {{1, drop_unknown_attributes}},
           .inputs = {{"X", kFloats, "T"}, {"Scale", kFloats, "T"}, {"B", kFloats, "T", Presence::optional}},
           .outputs = {{"Y", kFloats, "T"}, {"Mean", kStash, "U", Presence::optional}, {"InvStdDev", kStash, "U", Presence::optional}},
           .attributes = {{"axis", int64_t{-1}}, {"epsilon", 1e-5f}, {"stash_type", int64_t{1}}},
           .infer = infer_layer_norm,
           .cost = elementwise_cost<8>,
           .alias = {may_reuse(0, 0)},
           .kernels = typed<LayerNormalization, float, double, Float16, BFloat16>(),
           .gradient = layer_normalization_gradient,
           .decompose = part_from_parameters_of_rows,
           .half = HalfFloats::float32_by_itself},
          {.name = "RMSNormalization",
           .since = {23},
           .inputs = {{"X", kFloats, "T"}, {"scale", kFloats, "V"}},
           .outputs = {{"Y", kFloats, "V"}},
           .attributes = {{"axis", int64_t{-1}}, {"epsilon", 1e-5f}, {"stash_type", int64_t{1}}},
           .infer = infer_rms_norm,
           .cost = elementwise_cost<5>,
           .kernels = typed<RMSNormalization, float, double, Float16, BFloat16>(),
           .gradient = rms_normalization_gradient,
           .decompose = decompose_rms_norm,
           .half = HalfFloats::float32_by_itself}};
}

}  // namespace treadle::ops
