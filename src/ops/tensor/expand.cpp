// Implements Expand and Tile, which repeat a tensor along its axes.
#include <fmt/format.h>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/decomposition.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_expand(InferContext& c) {
  const auto wanted = c.known(1);
  if (!wanted || !c.has_rank(0)) {
    auto count = wanted ? std::optional<int64_t>(wanted->size()) : known_length(c, 1);
    if (!count || !c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
    return c.set_output(0, c.dtype(0), c.data_dependent_shape("expand", static_cast<int>(std::max<int64_t>(*count, c.rank(0)))));
  }
  for (const Dim& extent : *wanted)
    if (extent.is_const() && extent.value() < 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("the shape {} has a negative extent", to_string(*wanted)));
  SymbolicShape out = broadcast(c.shape(0), SymbolicShape(*wanted));
  const Dim count = product(out);
  if (auto values = c.known(0); values && values->size() == 1 && count.is_const() && count.value() <= kMaxKnownValues)
    c.set_known(0, KnownValues(static_cast<size_t>(count.value()), (*values)[0]));
  c.set_output(0, c.dtype(0), std::move(out));
}

void infer_tile(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const auto repeats = c.known(1);
  if (!repeats) return c.set_output(0, c.dtype(0), c.data_dependent_shape("tile", c.rank(0)));
  SymbolicShape out = c.shape(0);
  if (repeats->size() != out.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("repeats has {} elements for {} axes", repeats->size(), out.size()));
  for (size_t axis = 0; axis < out.size(); ++axis) {
    const Dim& times = (*repeats)[axis];
    if (times.is_const() && times.value() < 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("repeats[{}] = {} is negative", axis, times.value()));
    out[axis] = out[axis] * times;
  }
  c.set_output(0, c.dtype(0), std::move(out));
}

struct Expand {
  DType dtype;
  kernels::CopyPlan plan;
  static Expand bind(BindContext& c) { return {c.dtype(0), kernels::plan_expand(c.shape(0).dims(), c.output_shape(0).dims())}; }
  void run(RunContext& c) const { move_elements(plan, dtype, c.in<void>(0), 0, c.out<void>(0), 0, c.pool()); }
};

struct Tile {
  DType dtype;
  kernels::CopyPlan plan;
  static Tile bind(BindContext& c) {
    int64_t repeats[kMaxRank];
    const int rank = c.shape(0).rank();
    for (int axis = 0; axis < rank; ++axis) repeats[axis] = c.value_at(1, axis);
    return {c.dtype(0), kernels::plan_tile(c.shape(0).dims(), {repeats, static_cast<size_t>(rank)})};
  }
  void run(RunContext& c) const { move_elements(plan, dtype, c.in<void>(0), 0, c.out<void>(0), 0, c.pool()); }
};

// Upgrades Tile of opset 1, which repeated along one axis. Its inputs were input, tiles and axis; the latter two are scalars of the dtype
// of the input.
void scalars_to_repeats(Graph& graph, NodeId id) {
  require_inputs(graph.node(id), 3);
  NodeWriter writer(graph, id, graph.node(id).name);
  auto integer = [&](size_t input) {
    return writer.op("Reshape", {writer.cast(graph.node(id).inputs[input], DType::int64), writer.ints({1})});
  };
  const ValueId once = writer.op("ConstantOfShape", {writer.rank_of(graph.node(id).inputs[0])},
                                 {{"value", Datum(Tensor::vector<int64_t>(std::vector<int64_t>{1}))}});
  const ValueId repeats = writer.op("ScatterElements", {once, integer(2), integer(1)});
  graph.resize_inputs(id, 2);
  graph.set_input(id, 1, repeats);
}

Gradients expand_gradient(GradientContext& g) { return {g.unbroadcast(g.grad_output(0), g.input(0))}; }

// Splits every axis of dY into two axes, one for the repeats and one of the original extent, and sums over the axes of repeats.
Gradients tile_gradient(GradientContext& g) {
  const int rank = rank_of(g, g.input(0));
  std::vector<int64_t> repeats;
  for (int axis = 0; axis < rank; ++axis) repeats.push_back(2 * axis);
  if (rank == 0) return {g.grad_output(0)};
  auto as_column = [&](ValueId v) { return g.op("Unsqueeze", {v, g.ints({1})}); };
  const ValueId pairs = g.op("Concat", {as_column(g.input(1)), as_column(g.shape_of(g.input(0)))}, {{"axis", int64_t{1}}});
  const ValueId split = g.op("Reshape", {g.grad_output(0), g.op("Reshape", {pairs, g.ints({-1})})}, {{"allowzero", int64_t{1}}});
  return {g.reduce_sum(split, std::move(repeats), /*keepdims=*/false)};
}

}  // namespace

std::vector<OpDef> expand_ops() {
  return {
      {.name = "Expand",
       .since = {8, 13},
       .inputs = {{"input", kAllTensors, "T"}, {"shape", kInt64, "", Presence::required, of_rank(1)}},
       .outputs = {{"output", kAllTensors, "T"}},
       .infer = infer_expand,
       .cost = move_cost,
       .kernels = {kernel<Expand>()},
       .gradient = expand_gradient,
       .value_inputs = {1},
       .moves = Moves::anywhere,
       .returns_input = keeps_type_and_shape},
      {.name = "Tile",
       .since = {1, 6, 13},
       .upgrade = {{1, scalars_to_repeats}},
       .inputs = {{"input", kAllTensors, "T"}, {"repeats", kInt64}},
       .outputs = {{"output", kAllTensors, "T"}},
       .infer = infer_tile,
       .cost = move_cost,
       .kernels = {kernel<Tile>()},
       .gradient = tile_gradient,
       .value_inputs = {1, 2},  // input 2 is the axis in opset 1
       .moves = Moves::anywhere,
       .returns_input = keeps_type_and_shape},
  };
}

}  // namespace treadle::ops
