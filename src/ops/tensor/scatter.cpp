// Implements ScatterElements, ScatterND, TensorScatter, and the deprecated Scatter, which write elements or slices by index.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/movement/gather.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/index_plans.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kWhole = kNumeric | kBool | kString | kComplex | kFloat8;

// Combines an old element with an update. Integers wrap around, as in NumPy. For booleans, add is OR and mul is AND.
template <typename T>
T combine(ScatterReduction reduction, T old_value, T update) {
  using Compute = typename ComputeType<T>::type;
  const auto a = static_cast<Compute>(old_value), b = static_cast<Compute>(update);
  switch (reduction) {
    case ScatterReduction::add:
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      else
        return static_cast<T>(a + b);
    case ScatterReduction::mul:
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      else
        return static_cast<T>(a * b);
    case ScatterReduction::max: return b > a || b != b ? update : old_value;
    case ScatterReduction::min: return b < a || b != b ? update : old_value;
    case ScatterReduction::none: break;
  }
  return update;
}

// Calls fn.template operator()<T>(reduce), where T is the element type, and reduce(old, update) returns the combined element.
template <typename Fn>
void visit_reduction(DType dtype, ScatterReduction reduction, Fn&& fn) {
  if (reduction != ScatterReduction::none) {
    return visit_dtype<concat_t<NumericTypes, TypeList<bool>>>(
        dtype, [&]<typename T>() { fn.template operator()<T>([reduction](T a, T b) { return combine(reduction, a, b); }); });
  }
  if (dtype == DType::string) return fn.template operator()<std::string>([](const std::string&, const std::string& b) { return b; });
  kernels::visit_element(static_cast<size_t>(element_bytes(dtype)),
                         [&]<typename T>() { fn.template operator()<T>([](T, T b) { return b; }); });
}

void infer_like_data(InferContext& c) { c.set_output(0, c.input(0)); }

void infer_elements(InferContext& c) {
  scatter_reduction(c.attributes());
  infer_like_data(c);
  if (!c.has_rank(0)) return;
  const int axis = c.axis("axis", 0, c.rank(0));
  for (int i : {1, 2}) {
    if (!c.has_rank(i)) continue;
    if (c.rank(i) != c.rank(0))
      throw Error(ErrorCode::invalid_argument, fmt::format("data are of rank {}, input {} of rank {}", c.rank(0), i, c.rank(i)));
    for (size_t a = 0; a < c.shape(i).size(); ++a) {
      const Dim &have = c.shape(0)[a], &want = c.shape(i)[a];
      if (static_cast<int>(a) != axis && have.is_const() && want.is_const() && want.value() > have.value())
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("axis {} of input {} has {} elements, the data {}", a, i, want.value(), have.value()));
    }
  }
  if (c.has_rank(1) && c.has_rank(2))
    for (size_t a = 0; a < c.shape(1).size(); ++a) unify(c.shape(1)[a], c.shape(2)[a], "extents of indices and updates");
}

void infer_nd(InferContext& c) {
  scatter_reduction(c.attributes());
  infer_like_data(c);
  if (c.has_rank(1) && c.rank(1) == 0) throw Error(ErrorCode::invalid_argument, "indices is a scalar; its last axis holds index tuples");
  if (!c.has_rank(0) || !c.has_rank(1) || !c.has_rank(2)) return;
  if (!c.shape(1).back().is_const()) return;
  const SymbolicShape &data = c.shape(0), &indices = c.shape(1);
  const int64_t depth = indices.back().value();
  if (depth > c.rank(0)) throw Error(ErrorCode::invalid_argument, fmt::format("index tuples of {} for data of rank {}", depth, c.rank(0)));
  SymbolicShape wanted(indices.begin(), indices.end() - 1);
  wanted.insert(wanted.end(), data.begin() + depth, data.end());
  bool fits = wanted.size() == c.shape(2).size();
  for (size_t a = 0; fits && a < wanted.size(); ++a)
    fits = !wanted[a].is_const() || !c.shape(2)[a].is_const() || wanted[a] == c.shape(2)[a];
  if (!fits) throw Error(ErrorCode::invalid_argument, fmt::format("updates are {}, expected {}", to_string(c.shape(2)), to_string(wanted)));
}

Cost cost(const ShapeContext& c) { return {0, 2 * (c.size_bytes(0) + c.size_bytes(2))}; }

template <typename Index>
struct ScatterElements {
  DType dtype;
  ScatterReduction reduction;
  int64_t count;
  kernels::ElementsPlan plan;
  static ScatterElements bind(BindContext& c) {
    return {c.dtype(0), scatter_reduction(c.node().attributes), c.num_elements(0), bind_scatter_elements(c)};
  }
  void run(RunContext& c) const {
    copy_elements(dtype, c.in<void>(0), c.out<void>(0), count, c.pool());
    visit_reduction(dtype, reduction,
                    [&]<typename T>(auto reduce) { kernels::scatter_elements(plan, c.in<T>(2), c.in<Index>(1), c.out<T>(0), reduce); });
  }
};

struct ScatterNd {
  DType dtype;
  ScatterReduction reduction;
  int64_t count;
  kernels::TuplePlan plan;
  static ScatterNd bind(BindContext& c) {
    return {c.dtype(0), scatter_reduction(c.node().attributes), c.num_elements(0), bind_scatter_nd(c)};
  }
  void run(RunContext& c) const {
    copy_elements(dtype, c.in<void>(0), c.out<void>(0), count, c.pool());
    visit_reduction(dtype, reduction,
                    [&]<typename T>(auto reduce) { kernels::scatter_nd(plan, c.in<T>(2), c.in<int64_t>(1), c.out<T>(0), reduce); });
  }
};

// Computes TensorScatter: copies the past cache and writes `update` into it, at a position that may differ between the samples of the
// batch.
struct TensorScatter {
  DType dtype;
  bool circular, has_indices;
  int64_t count, batch, middle, extent, length, inner;  // cache [batch, middle, extent, inner], update [batch, middle, length, inner]

  static TensorScatter bind(BindContext& c) {
    const Shape &cache = c.shape(0), &update = c.shape(1);
    const int axis = c.axis("axis", -2, cache.rank());
    for (int a = 0; a < cache.rank(); ++a)
      if (a != axis) check_equal(cache[a], update[a], "extents of past_cache and update beside the axis");
    if (update[axis] > cache[axis])
      throw Error(ErrorCode::invalid_argument, fmt::format("an update of {} elements for a cache of {}", update[axis], cache[axis]));
    if (c.has_input(2)) check_equal(c.num_elements(2), cache[0], "write_indices and the batch");
    TensorScatter k{};
    k.dtype = c.dtype(0);
    k.circular = c.get_string("mode", "linear") == "circular";
    k.has_indices = c.has_input(2);
    k.count = c.num_elements(0);
    k.batch = cache[0], k.middle = cache.product(1, axis), k.extent = cache[axis], k.length = update[axis],
    k.inner = cache.product(axis + 1, cache.rank());
    return k;
  }
  void run(RunContext& c) const {
    copy_elements(dtype, c.in<void>(0), c.out<void>(0), count, c.pool());
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t first = has_indices ? c.in<int64_t>(2)[b] : 0;
      if (first < 0 || (!circular && first > extent - length))
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("write_indices[{}] = {}: {} elements from there on leave a cache of {}", b, first, length, extent));
      const int64_t start = circular && extent > 0 ? first % extent : first;
      const int64_t fits = std::min(length, extent - start);
      for (int64_t m = 0; m < middle; ++m) {
        const int64_t row = b * middle + m;
        const int64_t from = row * length * inner, to = row * extent * inner;
        move_blocks(dtype, 1, fits * inner, c.in<void>(1), from, fits * inner, c.out<void>(0), to + start * inner, fits * inner, nullptr);
        move_blocks(dtype, 1, (length - fits) * inner, c.in<void>(1), from + fits * inner, 0, c.out<void>(0), to, 0, nullptr);
      }
    }
  }
};

void infer_tensor_scatter(InferContext& c) {
  infer_like_data(c);
  const std::string_view mode = c.get_string("mode", "linear");
  if (mode != "linear" && mode != "circular")
    throw Error(ErrorCode::invalid_argument, fmt::format("mode = \"{}\"; there are linear and circular", mode));
  if (!c.has_rank(0) || !c.has_rank(1)) return;
  if (c.rank(0) != c.rank(1))
    throw Error(ErrorCode::invalid_argument, fmt::format("past_cache is of rank {}, update of rank {}", c.rank(0), c.rank(1)));
  const auto axis = static_cast<size_t>(c.axis("axis", -2, c.rank(0)));
  if (axis == 0) throw Error(ErrorCode::invalid_argument, "axis = 0 is the batch");
  for (size_t a = 0; a < c.shape(0).size(); ++a)
    if (a != axis) unify(c.shape(0)[a], c.shape(1)[a], fmt::format("axis {} of past_cache and update", a));
  const Dim &extent = c.shape(0)[axis], &length = c.shape(1)[axis];
  if (extent.is_const() && length.is_const() && length.value() > extent.value())
    throw Error(ErrorCode::invalid_argument, fmt::format("an update of {} elements for a cache of {}", length.value(), extent.value()));
}

void to_scatter_elements(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  replace_node(graph, id, {.op_type = "ScatterElements", .inputs = node.inputs, .attributes = node.attributes});
}

struct ScatterRule {
  GradientContext& g;
  std::string_view scatter_op, gather_op;
  Attributes attributes;

  ValueId scatter(ValueId data, ValueId updates, std::string reduction) const {
    Attributes with = attributes;
    with.set("reduction", std::move(reduction));
    return g.op(scatter_op, {data, g.input(1), updates}, std::move(with));
  }
  ValueId gather(ValueId data) const { return g.op(gather_op, {data, g.input(1)}, attributes); }
  ValueId number(ValueId condition, ValueId like) const {
    return g.op("Cast", {condition}, {{"to", static_cast<int64_t>(g.type(like).dtype)}});
  }

  // Differentiates by the kind of reduction. Replaced elements of the data have no gradient. With "add", data and updates both get dY.
  Gradients differentiate() const {
    const std::string reduction(g.attributes().get_string("reduction", "none"));
    const ValueId dy = g.grad_output(0);
    if (reduction == "mul") return product();
    if (reduction == "max" || reduction == "min") return extremum();
    const ValueId data = reduction == "add" ? dy : scatter(dy, zeros_like(g, g.input(2)), "none");
    return {data, kNoValue, gather(dy)};
  }

  // Differentiates y = data * product of u. The gradient of an update is dY times the product of all other factors, which is computed
  // without dividing by zeros.
  Gradients product() const {
    const ValueId data = g.input(0), u = g.input(2), dy = g.grad_output(0);
    const ValueId is_zero = g.op("Equal", {u, g.scalar(0, u)});
    const ValueId others = scatter(g.mul(dy, data), g.op("Where", {is_zero, g.scalar(1, u), u}), "mul");
    const ValueId zeros = gather(scatter(zeros_like(g, data), number(is_zero, u), "add"));
    const ValueId flows = g.op("Equal", {zeros, number(is_zero, u)});  // true: no other factor is 0
    const ValueId divisor = g.op("Where", {is_zero, g.scalar(1, u), u});
    return {scatter(dy, u, "mul"), kNoValue, masked(g, flows, g.div(gather(others), divisor))};
  }

  // Elements that equal the extremum share its gradient evenly.
  Gradients extremum() const {
    const ValueId data = g.input(0), u = g.input(2), y = g.output(0);
    const ValueId kept = number(g.op("Equal", {data, y}), data), taken = number(g.op("Equal", {u, gather(y)}), u);
    const ValueId share = g.div(g.grad_output(0), scatter(kept, taken, "add"));
    return {g.mul(share, kept), kNoValue, g.mul(gather(share), taken)};
  }
};

Gradients scatter_elements_gradient(GradientContext& g) {
  return ScatterRule{g, "ScatterElements", "GatherElements", {{"axis", g.attributes().get_int("axis", 0)}}}.differentiate();
}

Gradients scatter_nd_gradient(GradientContext& g) { return ScatterRule{g, "ScatterND", "GatherND", {}}.differentiate(); }

// Differentiates TensorScatter. The gradient of past_cache is dY, with zeros where the update was written. The gradient of the update is
// the part of dY at these positions.
Gradients tensor_scatter_gradient(GradientContext& g) {
  const ValueId update = g.input(1), dy = g.grad_output(0);
  const Attributes attributes = g.attributes();
  std::vector<ValueId> inputs{dy, zeros_like(g, update)};
  if (g.input(2) != kNoValue) inputs.push_back(g.input(2));
  Gradients result{g.op("TensorScatter", std::move(inputs), attributes), kNoValue};
  if (!g.wants(1)) return result;
  const int rank = rank_of(g, dy), axis = static_cast<int>(normalize_axis(attributes.get_int("axis", -2), rank));
  auto extent = [&](ValueId value) {
    const ValueId shape = g.op("Shape", {value}, {{"start", int64_t{axis}}, {"end", int64_t{axis} + 1}});
    return g.op("Squeeze", {shape});
  };
  auto integer = [&](int64_t value) { return g.constant(Tensor::scalar<int64_t>(value)); };
  auto at_axes = [&](ValueId vector, int kept) {  // adds axes of extent 1 to [n], so that its axis is `kept`
    std::vector<int64_t> axes;
    for (int a = 0; a < rank; ++a)
      if (a != kept) axes.push_back(a);
    return g.op("Unsqueeze", {vector, g.ints(std::move(axes))});
  };
  ValueId places = at_axes(g.op("Range", {integer(0), extent(update), integer(1)}), axis);
  if (g.input(2) != kNoValue) places = g.add(places, at_axes(g.input(2), 0));
  if (attributes.get_string("mode", "linear") == "circular") places = g.op("Mod", {places, extent(dy)});
  places = g.op("Expand", {places, g.shape_of(update)});
  result[1] = g.op("GatherElements", {dy, places}, {{"axis", int64_t{axis}}});
  return result;
}

}  // namespace

ScatterReduction scatter_reduction(const Attributes& attributes) {
  const std::string_view name = attributes.get_string("reduction", "none");
  constexpr std::string_view kNames[] = {"none", "add", "mul", "max", "min"};
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames))
    throw Error(ErrorCode::invalid_argument, fmt::format("reduction = \"{}\"; there are none, add, mul, max and min", name));
  return static_cast<ScatterReduction>(found - std::begin(kNames));
}

kernels::ElementsPlan bind_scatter_elements(const BindContext& c) {
  const Shape &data = c.shape(0), &indices = c.shape(1), &updates = c.shape(2);
  const int axis = c.axis("axis", 0, data.rank());
  if (indices != updates)
    throw Error(ErrorCode::invalid_argument, fmt::format("indices are {}, updates {}", to_string(indices), to_string(updates)));
  for (int a = 0; a < data.rank(); ++a)
    if (a != axis && indices[a] > data[a])
      throw Error(ErrorCode::invalid_argument, fmt::format("axis {} of the indices has {} elements, the data {}", a, indices[a], data[a]));
  return kernels::plan_elements(data.dims(), indices.dims(), axis);
}

kernels::TuplePlan bind_scatter_nd(const BindContext& c) {
  const Shape &data = c.shape(0), &indices = c.shape(1);
  const kernels::TuplePlan plan = kernels::plan_tuples(data.dims(), indices.dims(), 0);
  Shape wanted;
  for (int a = 0; a + 1 < indices.rank(); ++a) wanted.push_back(indices[a]);
  for (int a = static_cast<int>(indices[indices.rank() - 1]); a < data.rank(); ++a) wanted.push_back(data[a]);
  if (c.shape(2) != wanted)
    throw Error(ErrorCode::invalid_argument, fmt::format("updates are {}, expected {}", to_string(c.shape(2)), to_string(wanted)));
  return plan;
}

std::vector<OpDef> scatter_ops() {
  const std::vector<Port> data_indices_updates = {{"data", kWhole, "T"}, {"indices", kInt32Or64}, {"updates", kWhole, "T"}};
  return {
      {.name = "Scatter",
       .since = {9, 11},
       .inputs = data_indices_updates,
       .outputs = {{"output", kWhole, "T"}},
       .attributes = {{"axis", int64_t{0}}},
       .infer = infer_elements,
       .decompose = to_scatter_elements},
      {.name = "ScatterElements",
       .since = {11, 13, 16, 18},
       .inputs = data_indices_updates,
       .outputs = {{"output", kWhole, "T"}},
       .attributes = {{"axis", int64_t{0}}, {"reduction", std::string_view("none")}},
       .infer = infer_elements,
       .cost = cost,
       .alias = {may_reuse(0, 0)},
       .kernels = {kernel<ScatterElements<int64_t>>("plain", DType::int64, 1), kernel<ScatterElements<int32_t>>("plain", DType::int32, 1)},
       .gradient = scatter_elements_gradient},
      {.name = "ScatterND",
       .since = {11, 13, 16, 18},
       .inputs = {{"data", kWhole, "T"}, {"indices", kInt64}, {"updates", kWhole, "T"}},
       .outputs = {{"output", kWhole, "T"}},
       .attributes = {{"reduction", std::string_view("none")}},
       .infer = infer_nd,
       .cost = cost,
       .alias = {may_reuse(0, 0)},
       .kernels = {kernel<ScatterNd>()},
       .gradient = scatter_nd_gradient},
      {.name = "TensorScatter",
       .since = {24},
       .inputs = {{"past_cache", kAllTensors, "T"}, {"update", kAllTensors, "T"}, {"write_indices", kInt64, "", Presence::optional}},
       .outputs = {{"present_cache", kAllTensors, "T"}},
       .attributes = {{"axis", int64_t{-2}}, {"mode", std::string_view("linear")}},
       .infer = infer_tensor_scatter,
       .cost = move_cost,
       .alias = {may_reuse(0, 0)},
       .kernels = {kernel<TensorScatter>()},
       .gradient = tensor_scatter_gradient},
  };
}

}  // namespace treadle::ops
