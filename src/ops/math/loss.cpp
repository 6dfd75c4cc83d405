// Implements NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss (ONNX, opsets 22 and 13).
#include "ops/math/loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "graph/inferred_types.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/ctc.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {

LossPlan LossPlan::bind(const BindContext& c) {
  const Shape& shape = c.shape(0);
  if (shape.rank() < 2 || c.num_elements(1) != shape[0] * shape.product(2, shape.rank()))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the input {} and the target {} do not fit", to_string(shape), to_string(c.shape(1))));
  if (c.has_input(2) && c.num_elements(2) != shape[1])
    throw Error(ErrorCode::invalid_argument, fmt::format("{} weights for {} classes", c.num_elements(2), shape[1]));
  return of(c, shape, 2);
}

namespace {

// Infers the shape of the loss from scores [N, C, d1, ...] and labels [N, d1, ...].
void infer_loss(InferContext& c) {
  std::string_view reduction = c.get_string("reduction", "mean");
  if (reduction != "mean" && reduction != "sum" && reduction != "none")
    throw Error(ErrorCode::invalid_model, fmt::format("reduction = \"{}\"; it must be mean, sum or none", reduction));
  if (c.has_rank(0) && c.rank(0) < 2)
    throw Error(ErrorCode::invalid_argument, fmt::format("the input {} must have at least two axes, [N, C, ...]", to_string(c.shape(0))));
  if (c.has_rank(0) && c.has_rank(1)) {
    const SymbolicShape& scores = c.shape(0);
    const SymbolicShape& labels = c.shape(1);
    bool fits = labels.size() + 1 == scores.size();
    for (size_t i = 0; fits && i < labels.size(); ++i) {
      const Dim& extent = scores[i == 0 ? 0 : i + 1];
      fits = !extent.is_const() || !labels[i].is_const() || extent == labels[i];
      if (fits) assume_equal(extent, labels[i], "extents of the input and of the target");
    }
    if (!fits)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the input {} and the target {} do not fit: [N, C, ...] and [N, ...] are expected", to_string(scores),
                              to_string(labels)));
  }
  if (c.has_rank(2) && c.has_rank(0) &&
      (c.rank(2) != 1 || (c.shape(2)[0].is_const() && c.shape(0)[1].is_const() && !(c.shape(2)[0] == c.shape(0)[1]))))
    throw Error(ErrorCode::invalid_argument, fmt::format("the weights {} must have one entry for each of the {} classes",
                                                         to_string(c.shape(2)), to_string(c.shape(0)[1])));
  if (c.has_rank(2) && c.has_rank(0)) assume_equal(c.shape(2)[0], c.shape(0)[1], "weights and classes");
  if (reduction != "none") return c.set_output(0, c.dtype(0), SymbolicShape{});
  if (c.has_rank(1))
    c.set_output(0, c.dtype(0), c.shape(1));
  else
    c.set_output_dtype(0, c.dtype(0));
}

void infer_cross_entropy(InferContext& c) {
  infer_loss(c);
  if (c.has_output(1)) c.set_output(1, c.input(0));
}

template <typename T>
struct NegativeLogLikelihood : LossPlan {
  static NegativeLogLikelihood bind(BindContext& c) { return {LossPlan::bind(c)}; }

  void run(RunContext& c) const {
    if (wide_target)
      run_with<int64_t>(c);
    else
      run_with<int32_t>(c);
  }

  // Sums in double, on one thread. This is little work: one term per
  // sample, while C scores per sample have been computed before.
  template <typename Index>
  void run_with(RunContext& c) const {
    const T* scores = c.in<T>(0);
    const Index* target = c.in<Index>(1);
    const T* weights = weighted ? c.in<T>(2) : nullptr;
    T* out = c.out<T>(0);
    double loss = 0, total_weight = 0;
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t p = 0; p < positions; ++p) {
        auto label = static_cast<int64_t>(target[n * positions + p]);
        double term = 0;
        if (!ignored(label)) {
          if (label < 0 || label >= classes)
            throw Error(ErrorCode::invalid_argument, fmt::format("the target {} is outside [0, {})", label, classes));
          double weight = weights ? static_cast<double>(weights[label]) : 1;
          term = -static_cast<double>(scores[(n * classes + label) * positions + p]) * weight;
          total_weight += weight;
        }
        loss += term;
        if (reduction == Reduction::none) out[n * positions + p] = static_cast<T>(term);
      }
    }
    if (reduction != Reduction::none) *out = static_cast<T>(reduction == Reduction::sum ? loss : loss / total_weight);
  }
};

Cost cost(const ShapeContext& c) {
  double n = static_cast<double>(c.num_elements(1));
  return {2 * n, 4 * n};
}

void decompose_cross_entropy(Graph& graph, NodeId id) {
  Attributes attributes = graph.node(id).attributes;
  NodeId log_softmax =
      graph.add_node({.op_type = "LogSoftmax", .inputs = {graph.node(id).inputs[0]}, .attributes = {{"axis", int64_t{1}}}}, id);
  ValueId log_prob = graph.node(log_softmax).outputs[0];
  std::vector<ValueId> inputs = {log_prob, graph.node(id).inputs[1]};
  if (graph.node(id).has_input(2)) inputs.push_back(graph.node(id).inputs[2]);
  NodeId loss =
      graph.add_node({.op_type = "NegativeLogLikelihoodLoss", .inputs = std::move(inputs), .attributes = std::move(attributes)}, id);
  graph.replace_uses(graph.node(id).outputs[0], graph.node(loss).outputs[0]);
  if (graph.node(id).has_output(1)) graph.replace_uses(graph.node(id).outputs[1], log_prob);
  graph.remove_node(id);
}

Gradients negative_log_likelihood_gradient(GradientContext& g) {
  std::vector<ValueId> inputs{g.grad_output(0), g.input(1), g.shape_of(g.input(0))};
  if (g.input(2) != kNoValue) inputs.push_back(g.input(2));
  return {g.op("NegativeLogLikelihoodLossGrad", std::move(inputs), g.attributes(), "treadle")};
}

OpDef negative_log_likelihood() {
  return {.name = "NegativeLogLikelihoodLoss",
          .since = {12, 13, 22},
          .inputs = {{"input", kFloats, "T"}, {"target", kInt32Or64, "Tind"}, {"weight", kFloats, "T", Presence::optional}},
          .outputs = {{"loss", kFloats, "T"}},
          .attributes = {{"ignore_index"}, {"reduction", "mean"}},
          .infer = infer_loss,
          .cost = cost,
          .kernels = typed<NegativeLogLikelihood, float, double, Float16, BFloat16>(),
          .gradient = negative_log_likelihood_gradient};
}

OpDef cross_entropy() {
  return {.name = "SoftmaxCrossEntropyLoss",
          .since = {12, 13},
          .inputs = {{"scores", kFloats, "T"}, {"labels", kInt32Or64, "Tind"}, {"weights", kFloats, "T", Presence::optional}},
          .outputs = {{"output", kFloats, "T"}, {"log_prob", kFloats, "T", Presence::optional}},
          .attributes = {{"ignore_index"}, {"reduction", "mean"}},
          .infer = infer_cross_entropy,
          .decompose = decompose_cross_entropy};
}

}  // namespace

std::vector<OpDef> loss_ops() {
  std::vector<OpDef> all{negative_log_likelihood(), cross_entropy()};
  for (OpDef& op : ctc_ops()) all.push_back(std::move(op));
  return all;
}

}  // namespace treadle::ops
