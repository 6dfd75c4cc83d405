// Implements BatchNormalization, with running statistics or with the statistics of the batch (training_mode = 1).
#include <fmt/format.h>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/internal_attributes.h"
#include "graph/op_def.h"
#include "kernels/normalization/norm.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/nn/normalization.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {

BatchPlanes BatchPlanes::bind(const BindContext& c) {
  const BatchPlanes planes = of(c.shape(0));
  for (int i = 1; i <= 4; ++i) check_equal(c.num_elements(i), planes.channels, "a parameter and the channels of X");
  return planes;
}

namespace {

void infer_batch_norm(InferContext& c) {
  c.set_output(0, c.input(0));
  for (int i : {1, 2}) {
    if (!c.has_output(i)) continue;
    if (c.get_int("training_mode") == 0)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("the output {} exists in training mode only", i == 1 ? "running_mean" : "running_var"));
    const Type& old = c.input(i + 2);
    c.set_output(i, old.has_rank() ? old : Type::tensor(old.dtype, {c.data_dependent_dim("channels")}));
  }
  if (!c.has_rank(0)) return;
  if (c.rank(0) < 1) throw Error(ErrorCode::invalid_argument, "X is a scalar; it has a batch");
  const Dim channels = c.rank(0) == 1 ? Dim(1) : c.shape(0)[1];
  for (int i = 1; i <= 4; ++i) {
    if (!c.has_rank(i)) continue;
    if (c.rank(i) != 1) throw Error(ErrorCode::invalid_argument, fmt::format("the input {} is of rank {}, not 1", i, c.rank(i)));
    unify(c.shape(i)[0], channels, "a parameter and the channels of X");
  }
}

// Widens a scale, bias or statistic to the type of computation. Their float type may differ from that of X. These tensors are small.
template <typename C>
const C* widen_any(RunContext& c, int input, DType dtype, int64_t n, int64_t offset) {
  if (dtype == dtype_of<C>) return c.in<C>(input);
  C* dst = reinterpret_cast<C*>(scratch_at(c, offset));
  visit_dtype<FloatTypes>(dtype, [&]<typename T>() {
    for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<C>(c.in<T>(input)[i]);
  });
  return dst;
}

template <typename T>
struct BatchNormalization : BatchPlanes {
  using C = compute_type_t<T>;
  C epsilon;
  float momentum;
  bool training, has_running_mean, has_running_var, unbiased;
  Wide x, y;
  DType dtypes[5];
  int64_t offsets[5];
  int64_t batch_mean, batch_var;

  static BatchNormalization bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    BatchNormalization k{BatchPlanes::bind(c)};
    k.epsilon = static_cast<C>(c.get_float("epsilon", 1e-5f));
    k.momentum = c.get_float("momentum", 0.9f);
    k.training = c.get_int("training_mode") != 0;
    k.has_running_mean = c.has_output(1), k.has_running_var = c.has_output(2);
    k.unbiased = c.get_int(kUnbiasedVariance) != 0;
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, shape.num_elements());
    k.y = reserve_wide<T>(layout, shape.num_elements());
    const size_t bytes = static_cast<size_t>(k.channels) * sizeof(C);
    for (int i = 1; i <= 4; ++i) k.dtypes[i] = c.dtype(i), k.offsets[i] = layout.take(bytes);
    k.batch_mean = layout.take(bytes), k.batch_var = layout.take(bytes);
    c.request_scratch(layout.total());
    return k;
  }

  void batch_statistics(RunContext& c, const C* in, C* mean, C* var) const {
    const double count = static_cast<double>(N * inner);
    parallel_for(c.pool(), channels, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, N * inner)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t channel = begin; channel < end; ++channel) {
                     // Uses two passes, for the mean and then the variance. A variance from sums of squares would lose precision by
                     // cancellation.
                     auto sum = [&](auto term) {
                       double total = 0;
                       for (int64_t n = 0; n < N; ++n) {
                         const C* row = in + (n * channels + channel) * inner;
                         for (int64_t i = 0; i < inner; ++i) total += term(static_cast<double>(row[i]));
                       }
                       return total;
                     };
                     const double m = sum([](double v) { return v; }) / count;
                     mean[channel] = static_cast<C>(m);
                     var[channel] = static_cast<C>(sum([m](double v) { return (v - m) * (v - m); }) / count);
                   }
                 });
  }

  void update_running(RunContext& c, int output, const C* running, const C* batch) const {
    visit_dtype<FloatTypes>(dtypes[output + 2], [&]<typename U>() {
      const C keep = static_cast<C>(momentum), count = static_cast<C>(N * inner);
      const C take = output == 2 && unbiased ? (1 - keep) * count / (count - 1) : 1 - keep;
      for (int64_t i = 0; i < channels; ++i) c.out<U>(output)[i] = static_cast<U>(running[i] * keep + batch[i] * take);
    });
  }

  void run(RunContext& c) const {
    const C* in = widen(c, c.in<T>(0), x);
    const C* parameters[5] = {};
    for (int i = 1; i <= 4; ++i) parameters[i] = widen_any<C>(c, i, dtypes[i], channels, offsets[i]);
    const C *mean = parameters[3], *var = parameters[4];
    if (training) {
      C *batch_m = reinterpret_cast<C*>(scratch_at(c, batch_mean)), *batch_v = reinterpret_cast<C*>(scratch_at(c, batch_var));
      batch_statistics(c, in, batch_m, batch_v);
      if (has_running_mean) update_running(c, 1, mean, batch_m);
      if (has_running_var) update_running(c, 2, var, batch_v);
      mean = batch_m, var = batch_v;
    }
    kernels::batch_norm<C>(N, channels, inner, in, parameters[1], parameters[2], mean, var, epsilon, wide_output(c, c.out<T>(0), y),
                           c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

// Upgrades nodes with spatial=0, whose parameters have an element for each element of a sample. These elements become channels.
void flatten_activations(Graph& graph, NodeId id) {
  auto add = [&](NodeSpec spec) { return graph.node(graph.add_node(std::move(spec), id)).outputs[0]; };
  const ValueId x = graph.node(id).inputs[0], whole = graph.add_constant("shape", Tensor::vector<int64_t>(std::vector<int64_t>{-1}));
  const ValueId shape = add({.op_type = "Shape", .inputs = {x}});
  std::vector<ValueId> inputs{add({.op_type = "Flatten", .inputs = {x}, .attributes = {{"axis", int64_t{1}}}})};
  for (size_t i = 1; i <= 4; ++i) inputs.push_back(add({.op_type = "Reshape", .inputs = {graph.node(id).inputs[i], whole}}));
  Attributes attributes;
  for (const char* name : {"epsilon", "momentum"})
    if (const Attribute* value = graph.node(id).attributes.find(name)) attributes.set(name, *value);
  const ValueId y = add({.op_type = "BatchNormalization", .inputs = std::move(inputs), .attributes = std::move(attributes)});
  replace_node(graph, id, {.op_type = "Reshape", .inputs = {y, shape}});
}

bool is_used(const Graph& graph, ValueId id) { return id != kNoValue && (!graph.value(id).uses.empty() || graph.is_output(id)); }

// Before opset 14, a training node had the running statistics in outputs 1 and 2, and the statistics of the batch in outputs 3 and 4.
void name_training(Graph& graph, NodeId id) {
  const std::vector<ValueId> outputs = graph.node(id).outputs;
  auto used = [&](size_t i) { return i < outputs.size() && is_used(graph, outputs[i]); };
  if (used(3) || used(4)) throw Error(ErrorCode::not_implemented, "the outputs saved_mean and saved_var, which opset 14 removed");
  const bool training = used(1) || used(2);
  graph.node(id).attributes.erase("is_test");
  graph.node(id).attributes.erase("spatial");
  graph.node(id).attributes.erase("consumed_inputs");
  if (training) graph.node(id).attributes.set("training_mode", int64_t{1});
  if (outputs.size() <= 1 || (training && outputs.size() <= 3)) return;
  // The new node has another number of outputs, which cannot be changed on the old one.
  NodeSpec spec{.op_type = "BatchNormalization", .inputs = graph.node(id).inputs, .attributes = graph.node(id).attributes};
  spec.num_outputs = training ? 3 : 1;
  const NodeId made = graph.add_node(std::move(spec), id);
  for (size_t i = 0; i < (training ? 3U : 1U); ++i)
    if (outputs[i] != kNoValue) graph.replace_uses(outputs[i], graph.node(made).outputs[i]);
  graph.remove_node(id);
}

void from_spatial(Graph& graph, NodeId id) {
  if (graph.node(id).attributes.get_int("spatial", 1) == 0 && graph.node(id).outputs.size() == 1) return flatten_activations(graph, id);
  name_training(graph, id);
}

Gradients batch_normalization_gradient(GradientContext& g) {
  const ValueId x = g.input(0), scale = g.input(1), dy = g.grad_output(0);
  const float epsilon = g.attributes().get_float("epsilon", 1e-5F);
  if (dy == kNoValue) return {};
  if (g.attributes().get_int("training_mode", 0) != 0)
    return g.op_n("BatchNormalizationGrad", {dy, x, scale}, 3, {{"epsilon", epsilon}}, "treadle");
  // The running statistics are treated as constants, without gradients.
  const int rank = rank_of(g, x);
  const ValueId deviation = g.op("Sqrt", {g.add(g.input(4), g.scalar(static_cast<double>(epsilon), g.input(4)))});
  const ValueId centered = g.sub(x, per_channel(g, g.input(3), rank));
  return {g.mul(dy, per_channel(g, g.div(scale, deviation), rank)), g.div(sum_per_channel(g, g.mul(dy, centered)), deviation),
          sum_per_channel(g, dy)};
}

}  // namespace

std::vector<OpDef> batch_normalization_ops() {
  return {{.name = "BatchNormalization",
           .since = {1, 6, 7, 9, 14, 15},
           .upgrade = {{1, from_spatial}, {6, from_spatial}, {7, from_spatial}, {9, name_training}},
           .inputs = {{"X", kFloats, "T"},
                      {"scale", kFloats, "T1"},
                      {"B", kFloats, "T1"},
                      {"input_mean", kFloats, "T2"},
                      {"input_var", kFloats, "T2"}},
           .outputs = {{"Y", kFloats, "T"},
                       {"running_mean", kFloats, "T2", Presence::optional},
                       {"running_var", kFloats, "T2", Presence::optional}},
           .attributes = {{"epsilon", 1e-5f}, {"momentum", 0.9f}, {"training_mode", int64_t{0}}, {kUnbiasedVariance, int64_t{0}}},
           .infer = infer_batch_norm,
           .cost = elementwise_cost<4>,
           // Outputs 1 and 2, the updated statistics, exist only in training mode.
           .alias = {may_reuse(0, 0), updates_statistic(1, 3), updates_statistic(2, 4)},
           .kernels = typed<BatchNormalization, float, double, Float16, BFloat16>(),
           .gradient = batch_normalization_gradient,
           .half = HalfFloats::float32_by_itself,
           .channels_last = {.how = ChannelsLast::How::scale_and_shift, .op = "NhwcAffine", .training_op = "NhwcBatchStatistics"}}};
}

}  // namespace treadle::ops
