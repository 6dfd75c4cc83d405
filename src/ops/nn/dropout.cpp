// Implements Dropout (ONNX, opset 22). In training mode it sets random elements to zero and scales up the others; otherwise it is the
// identity.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/generator/random_key.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kTypes = kFloats | TypeSet{DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz};
using RatioTypes = concat_t<FloatTypes, TypeList<Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ>>;

void infer(InferContext& c) {
  c.set_output(0, c.input(0));
  if (!c.has_output(1)) return;
  if (c.has_rank(0))
    c.set_output(1, DType::boolean, c.shape(0));
  else
    c.set_output_dtype(1, DType::boolean);
}

template <typename T>
struct Dropout {
  int64_t n;
  bool has_ratio, has_mode, has_mask;
  DType ratio_dtype;
  uint64_t key;

  static Dropout bind(BindContext& c) {
    if (c.has_input(1)) check_equal(c.num_elements(1), 1, "elements of ratio");
    if (c.has_input(2)) check_equal(c.num_elements(2), 1, "elements of training_mode");
    return {c.num_elements(0),
            c.has_input(1),
            c.has_input(2),
            c.has_output(1),
            c.has_input(1) ? c.dtype(1) : DType::undefined,
            random_key(c, static_cast<uint64_t>(c.get_int("seed", 0)))};
  }

  double ratio(RunContext& c) const {
    if (!has_ratio) return 0.5;
    double value = 0;
    visit_dtype<RatioTypes>(ratio_dtype, [&]<typename R>() { value = static_cast<double>(*c.in<R>(1)); });
    if (!(value >= 0 && value < 1)) throw Error(ErrorCode::invalid_argument, "ratio = " + std::to_string(value) + " is outside [0, 1)");
    return value;
  }

  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    T* out = c.out<T>(0);
    bool* mask = has_mask ? c.out<bool>(1) : nullptr;
    double drop = has_mode && *c.in<bool>(2) ? ratio(c) : 0;
    if (drop == 0) {
      if (out != in && n > 0) std::memmove(out, in, static_cast<size_t>(n) * sizeof(T));
      if (mask) std::fill_n(mask, n, true);
      return;
    }
    kernels::RandomStream stream{key, c.run_id};
    using C = compute_type_t<T>;
    auto scale = static_cast<C>(1 / (1 - drop));
    parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      constexpr int64_t kBlock = 256;
      double values[kBlock];
      for (int64_t first = begin; first < end; first += kBlock) {
        int64_t count = std::min(kBlock, end - first);
        stream.fill_uniform(first, values, count);
        for (int64_t i = 0; i < count; ++i) {
          bool stays = values[i] >= drop;
          out[first + i] = static_cast<T>(stays ? static_cast<C>(in[first + i]) * scale : C{0});
          if (mask) mask[first + i] = stays;
        }
      }
    });
  }
};

// Removes the attribute `is_test`, which before opset 7 selected inference or training. Old models are assumed to be for inference, where
// Dropout is the identity.
void drop_is_test(Graph& graph, NodeId id) { graph.node(id).attributes.erase("is_test"); }

/// Returns the mask for a node that drops nothing. ONNX does not define its elements; as in onnxruntime, they are all false.
ValueId mask_of_nothing(Graph& graph, NodeId id) {
  const NodeId shape = graph.add_node({.op_type = "Shape", .inputs = {graph.node(id).inputs[0]}}, id);
  const NodeId none = graph.add_node({.op_type = "ConstantOfShape", .inputs = {graph.node(shape).outputs[0]}}, id);
  const bool never = false;
  graph.node(none).attributes.set("value", Datum(Tensor::vector<bool>(std::span(&never, 1))));
  return graph.node(none).outputs[0];
}

// Before opset 10, the output mask had the dtype of the data. Casts the mask to this dtype.
void mask_becomes_bool(Graph& graph, NodeId id) {
  if (!graph.node(id).has_output(1)) return;
  const ValueId mask = mask_of_nothing(graph, id);
  const NodeId cast = graph.add_node({.op_type = "CastLike", .inputs = {mask, graph.node(id).inputs[0]}}, id);
  graph.replace_uses(graph.node(id).outputs[1], graph.node(cast).outputs[0]);
}

// Removes the attribute `ratio` from nodes before opset 12. These nodes have no input `training_mode`, so they drop nothing.
void drop_ratio(Graph& graph, NodeId id) {
  graph.node(id).attributes.erase("ratio");
  if (graph.node(id).has_output(1)) graph.replace_uses(graph.node(id).outputs[1], mask_of_nothing(graph, id));
}

// In training mode, y = x * mask / (1 - ratio); otherwise y = x.
Gradients dropout_gradient(GradientContext& g) {
  const ValueId dy = g.grad_output(0);
  const Tensor* training = g.input(2) == kNoValue ? nullptr : g.graph().constant_tensor(g.input(2));
  if (g.input(2) == kNoValue || (training && !*training->data<bool>())) return {dy};
  ValueId ratio = g.input(1) == kNoValue ? g.scalar(0.5, dy) : g.input(1);
  if (g.type(ratio).dtype != g.type(dy).dtype) ratio = g.op("Cast", {ratio}, {{"to", static_cast<int64_t>(g.type(dy).dtype)}});
  const ValueId scale = g.op("Where", {g.input(2), g.sub(g.scalar(1, dy), ratio), g.scalar(1, dy)});
  return {masked(g, require_output(g, 1), g.div(dy, scale))};
}

}  // namespace

std::vector<OpDef> dropout_ops() {
  return {
      {.name = "Dropout",
       .since = {1, 6, 7, 10, 12, 13, 22},
       .upgrade = {{1, drop_consumed_inputs}, {6, drop_is_test}, {7, mask_becomes_bool}, {10, drop_ratio}},
       .inputs = {{"data", kTypes, "T"}, {"ratio", kTypes, "T1", Presence::optional}, {"training_mode", kBool, "T2", Presence::optional}},
       .outputs = {{"output", kTypes, "T"}, {"mask", kBool, "T2", Presence::optional}},
       .attributes = {{"seed"}},
       .infer = infer,
       .cost = elementwise_cost<1>,
       .alias = {may_reuse(0, 0)},
       .kernels = typed<Dropout, float, double, Float16, BFloat16, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ>(),
       .gradient = dropout_gradient,
       .deterministic = false}};
}

}  // namespace treadle::ops
