// Implements FlexAttention of ai.onnx.preview: attention where graphs from the model modify the scores and the probabilities.
#include <fmt/format.h>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/controlflow/inline_body.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void check_body(const Body& body) {
  const size_t formal = num_formal_inputs(body);
  if (formal != 1 || body.graph->outputs.size() != 1)
    throw Error(ErrorCode::invalid_model,
                fmt::format("{} has {} inputs and {} outputs, not one of each", body.attribute, formal, body.graph->outputs.size()));
}

void decompose_flex_attention(Graph& graph, NodeId id) {
  const ValueId q = graph.node(id).inputs[0], k = graph.node(id).inputs[1], v = graph.node(id).inputs[2];
  const Attributes attributes = graph.node(id).attributes;
  for (const Body& body : graph.node(id).bodies) check_body(body);
  auto add = [&](NodeSpec spec) { return graph.node(graph.add_node(std::move(spec), id)).outputs[0]; };
  auto extents = [&](ValueId value, int64_t first, int64_t last) {
    return add({.op_type = "Shape", .inputs = {value}, .attributes = {{"start", first}, {"end", last}}});
  };
  auto reshape = [&](ValueId value, std::vector<ValueId> parts) {
    const ValueId shape = add({.op_type = "Concat", .inputs = std::move(parts), .attributes = {{"axis", int64_t{0}}}});
    return add({.op_type = "Reshape", .inputs = {value, shape}});
  };
  auto cast = [&](ValueId value, DType to) {
    return add({.op_type = "Cast", .inputs = {value}, .attributes = {{"to", static_cast<int64_t>(to)}}});
  };
  const DType dtype = graph.type(q).dtype;
  DType precision = dtype_attribute(attributes, "softmax_precision", DType::undefined);
  if (precision == DType::undefined) precision = dtype == DType::float64 ? DType::float64 : DType::float32;

  // Query heads that share a key head are adjacent, so they become rows of one matrix product.
  const ValueId any = graph.add_constant("rows", Tensor::vector<int64_t>(std::vector<int64_t>{-1}));
  const ValueId groups = extents(k, 0, 2);
  const ValueId rows = reshape(q, {groups, any, extents(q, 3, 4)});
  const ValueId keys = add({.op_type = "Transpose", .inputs = {k}, .attributes = {{"perm", std::vector<int64_t>{0, 1, 3, 2}}}});
  ValueId scale;
  if (attributes.has("scale")) {
    scale = cast(graph.add_constant("scale", Tensor::scalar(attributes.get_float("scale"))), precision);
  } else {
    const ValueId root = add({.op_type = "Sqrt", .inputs = {cast(extents(q, 3, 4), precision)}});
    scale = add({.op_type = "Reciprocal", .inputs = {root}});
  }
  ValueId scores = cast(add({.op_type = "MatMul", .inputs = {rows, keys}}), precision);
  scores = add({.op_type = "Mul", .inputs = {scores, scale}});
  scores = reshape(scores, {extents(q, 0, 3), extents(k, 2, 3)});
  if (const Body* body = graph.node(id).body("score_mod")) scores = inline_body(graph, id, *body, {&scores, 1})[0];
  ValueId probabilities = add({.op_type = "Softmax", .inputs = {scores}, .attributes = {{"axis", int64_t{-1}}}});
  if (const Body* body = graph.node(id).body("prob_mod")) probabilities = inline_body(graph, id, *body, {&probabilities, 1})[0];
  probabilities = reshape(cast(probabilities, dtype), {groups, any, extents(k, 2, 3)});
  const ValueId mixed = add({.op_type = "MatMul", .inputs = {probabilities, v}});
  const ValueId y = reshape(mixed, {extents(q, 0, 3), extents(v, 3, 4)});
  graph.replace_uses(graph.node(id).outputs[0], y);
  graph.remove_node(id);
}

}  // namespace

std::vector<OpDef> flex_attention_ops() {
  return {{.name = "FlexAttention",
           .domain = "ai.onnx.preview",
           .since = {1},
           .inputs = {{"Q", kFloats, "T1"}, {"K", kFloats, "T1"}, {"V", kFloats, "T1"}},
           .outputs = {{"Y", kFloats, "T1"}},
           .attributes = {{"prob_mod"}, {"scale"}, {"score_mod"}, {"softmax_precision"}},
           .decompose = decompose_flex_attention}};
}

}  // namespace treadle::ops
