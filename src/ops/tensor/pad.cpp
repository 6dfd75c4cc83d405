// Implements Pad and CenterCropPad. The latter adds elements on some axes and removes elements on others.
#include "ops/tensor/pad.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/named_axes.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
kernels::PadMode pad_mode(const Attributes& attributes) {
  const std::string_view mode = attributes.get_string("mode", "constant");
  if (mode == "constant") return kernels::PadMode::constant;
  if (mode == "reflect") return kernels::PadMode::reflect;
  if (mode == "edge") return kernels::PadMode::edge;
  if (mode == "wrap") return kernels::PadMode::wrap;
  throw Error(ErrorCode::invalid_argument, fmt::format("mode = \"{}\"; there are constant, reflect, edge and wrap", mode));
}

namespace {

void infer_pad(InferContext& c) {
  const auto mode = pad_mode(c.attributes());
  check_one_element(c, 2, "constant_value");
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const int rank = c.rank(0);
  const auto pads = c.known(1);
  auto axes = c.known_ints(3);
  if (!pads || (c.has_input(3) && !axes)) return c.set_output(0, c.dtype(0), c.data_dependent_shape("pad", rank));
  if (!axes) {
    axes.emplace(static_cast<size_t>(rank));
    std::iota(axes->begin(), axes->end(), 0);
  }
  const size_t count = axes->size();
  if (pads->size() != 2 * count)
    throw Error(ErrorCode::invalid_argument, fmt::format("pads has {} elements for {} axes", pads->size(), count));
  SymbolicShape out = c.shape(0);
  NamedAxes named;
  for (size_t i = 0; i < count; ++i) {
    Dim& extent = out[named.take((*axes)[i], rank)];
    const Dim padded = extent + (*pads)[i] + (*pads)[i + count];
    if (padded.is_const() && padded.value() < 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("pads {} and {} remove more than the {} elements of axis {}", to_string((*pads)[i]),
                              to_string((*pads)[i + count]), to_string(extent), (*axes)[i]));
    if (mode != kernels::PadMode::constant && padded.is_const() && padded.value() > 0) {
      const Dim kept = extent + minimum((*pads)[i], Dim(0)) + minimum((*pads)[i + count], Dim(0));
      if (kept.is_const() && kept.value() <= 0)
        throw Error(ErrorCode::invalid_argument, fmt::format("axis {} has no elements that could be repeated", (*axes)[i]));
    }
    extent = padded;
  }
  c.set_output(0, c.dtype(0), std::move(out));
}

}  // namespace

kernels::PadPlan bind_pad(BindContext& c) {
  const Shape& in = c.shape(0);
  int64_t before[kMaxRank] = {}, after[kMaxRank] = {};
  const int64_t count = c.has_input(3) ? c.value_count(3) : in.rank();
  if (c.value_count(1) != 2 * count)
    throw Error(ErrorCode::invalid_argument, fmt::format("pads has {} elements for {} axes", c.value_count(1), count));
  if (c.has_input(2)) check_equal(c.num_elements(2), 1, "elements of constant_value, and of a scalar");
  NamedAxes named;
  for (int64_t i = 0; i < count; ++i) {
    const size_t axis = named.take(c.has_input(3) ? c.value_at(3, i) : i, in.rank());
    before[axis] = c.value_at(1, i), after[axis] = c.value_at(1, i + count);
  }
  const auto rank = static_cast<size_t>(in.rank());
  return kernels::plan_pad(pad_mode(c.node().attributes), in.dims(), {before, rank}, {after, rank});
}

namespace {

void infer_center_crop_pad(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const std::vector<int64_t>& axes = c.get_ints("axes");
  const auto wanted = c.known(1);
  SymbolicShape out = c.shape(0);
  const size_t count = axes.empty() ? out.size() : axes.size();
  if (wanted && wanted->size() != count)
    throw Error(ErrorCode::invalid_argument, fmt::format("shape has {} elements for {} axes", wanted->size(), count));
  for (size_t i = 0; i < count; ++i) {
    const int axis = axes.empty() ? static_cast<int>(i) : normalize_axis(axes[i], c.rank(0), "axes");
    out[static_cast<size_t>(axis)] = wanted ? (*wanted)[i] : c.data_dependent_dim("crop");
  }
  c.set_output(0, c.dtype(0), std::move(out));
}

}  // namespace

// Half of the added or removed elements, rounded down, are at the beginning of the axis, the rest at the end.
kernels::PadPlan bind_center(BindContext& c) {
  const Shape &in = c.shape(0), &out = c.output_shape(0);
  int64_t before[kMaxRank] = {}, after[kMaxRank] = {};
  for (int axis = 0; axis < in.rank(); ++axis) {
    const int64_t added = out[axis] - in[axis];
    before[axis] = added / 2, after[axis] = added - before[axis];
  }
  const auto rank = static_cast<size_t>(in.rank());
  return kernels::plan_pad(kernels::PadMode::constant, in.dims(), {before, rank}, {after, rank});
}

namespace {

template <kernels::PadPlan (*kPlan)(BindContext&)>
struct Pad {
  size_t bytes;
  kernels::PadPlan plan;

  static std::string declines(const CreateContext& c) { return has_plain_bytes(c.dtype(0)) ? "" : "for elements of whole bytes"; }
  static Pad bind(BindContext& c) { return {static_cast<size_t>(element_bytes(c.dtype(0))), kPlan(c)}; }
  void run(RunContext& c) const { kernels::pad(plan, bytes, c.in<void>(0), c.in<void>(2), c.out<void>(0), c.pool()); }
};

// Pads strings and packed elements. It pads the numbers 0, 1, ... of the elements instead, and then copies elements by number.
template <kernels::PadPlan (*kPlan)(BindContext&)>
struct PadByNumber {
  DType dtype;
  kernels::PadPlan plan;

  static PadByNumber bind(BindContext& c) {
    PadByNumber k{c.dtype(0), kPlan(c)};
    c.request_scratch(static_cast<size_t>(k.plan.in_size + k.plan.out_size) * sizeof(int64_t));
    return k;
  }
  void run(RunContext& c) const {
    int64_t *numbers = c.scratch<int64_t>(), *padded = numbers + plan.in_size;
    std::iota(numbers, padded, 0);
    const int64_t nowhere = -1;
    kernels::pad(plan, sizeof(int64_t), numbers, &nowhere, padded, nullptr);
    const uint8_t zero = 0;
    const std::string empty;
    const void* value = c.in<void>(2);
    if (!value) value = dtype == DType::string ? static_cast<const void*>(&empty) : &zero;
    visit_access(dtype, [&]<typename Access>() {
      for (int64_t i = 0; i < plan.out_size; ++i) {
        if (padded[i] < 0)
          Access::copy(c.out<void>(0), i, value, 0);
        else
          Access::copy(c.out<void>(0), i, c.in<void>(0), padded[i]);
      }
    });
  }
};

void paddings_to_pads(Graph& graph, NodeId id) {
  Attributes& attributes = graph.node(id).attributes;
  if (!attributes.has("paddings")) return;
  attributes.set("pads", attributes.get_ints("paddings"));
  attributes.erase("paddings");
}

// Before opset 11, `pads` and `value` were attributes. This upgrade makes them inputs. `value` is cast to the dtype of the data, which may
// be unknown yet.
void attributes_to_inputs(Graph& graph, NodeId id) {
  ints_to_input(graph, id, "pads", 1);
  const float value = graph.node(id).attributes.get_float("value");
  graph.node(id).attributes.erase("value");
  if (value == 0) return;
  const DType dtype = graph.type(graph.node(id).inputs[0]).dtype;
  ValueId constant = graph.add_constant("value", Tensor::scalar(value));
  if (dtype != DType::float32) {
    NodeId cast = graph.add_node({.op_type = "CastLike", .inputs = {constant, graph.node(id).inputs[0]}}, id);
    constant = graph.node(cast).outputs[0];
  }
  graph.resize_inputs(id, 3);
  graph.set_input(id, 2, constant);
}

bool pads_nothing(const Graph& graph, const Node& node) { return node.has_input(1) && all_integers_are(graph, node.inputs[1], 0); }

/// Returns `value` padded in the same way as the node pads its data.
ValueId padded_like_data(GradientContext& g, ValueId value, ValueId fill, std::string_view mode) {
  std::vector<ValueId> inputs{value, g.input(1)};
  if (fill != kNoValue || g.input(3) != kNoValue) inputs.push_back(fill);
  if (g.input(3) != kNoValue) inputs.push_back(g.input(3));
  return g.op("Pad", std::move(inputs), {{"mode", std::string(mode)}});
}

// Applies the negated pads to dY: positive pads are removed, and negative ones filled with zeros. In modes that repeat elements, the
// gradient of an element is the sum over its copies, which are found by padding the numbers of the elements.
Gradients pad_gradient(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  const std::string mode(g.attributes().get_string("mode", "constant"));
  if (mode != "constant") {
    const ValueId size = g.op("Size", {x}), zero = g.constant(Tensor::scalar<int64_t>(0)), one = g.constant(Tensor::scalar<int64_t>(1));
    const ValueId numbers = padded_like_data(g, g.reshape_like(g.op("Range", {zero, size, one}), x), kNoValue, mode);
    auto flat = [&](ValueId value) { return g.op("Reshape", {value, g.ints({-1})}); };
    const ValueId length = g.op("Reshape", {size, g.ints({1})});
    return {g.reshape_like(g.op("GatherGrad", {flat(dy), flat(numbers), length}, {{"axis", int64_t{0}}}, "treadle"), x)};
  }
  std::vector<ValueId> inputs{dy, g.neg(g.input(1))};
  if (g.input(3) != kNoValue) inputs.insert(inputs.end(), {kNoValue, g.input(3)});
  Gradients result{g.op("Pad", std::move(inputs)), kNoValue, kNoValue};
  if (g.wants(2)) {
    const ValueId padding = padded_like_data(g, zeros_like(g, x), g.scalar(1, x), mode);
    result[2] = g.unbroadcast(g.mul(dy, padding), g.input(2));
  }
  return result;
}

// CenterCropPad is its own reverse: halves are rounded in the same way for adding and removing elements.
Gradients center_crop_pad_gradient(GradientContext& g) {
  const std::vector<int64_t> axes = g.attributes().get_ints("axes");
  ValueId shape = g.shape_of(g.input(0));
  if (axes.empty()) return {g.op("CenterCropPad", {g.grad_output(0), shape})};
  std::vector<int64_t> places;
  for (int64_t axis : axes) places.push_back(normalize_axis(axis, rank_of(g, g.input(0))));
  shape = g.op("Gather", {shape, g.ints(std::move(places))});
  return {g.op("CenterCropPad", {g.grad_output(0), shape}, {{"axes", axes}})};
}

}  // namespace

std::vector<OpDef> pad_ops() {
  constexpr TypeSet kCropTypes = kNumeric | kBool | kString | kComplex;
  return {
      {.name = "Pad",
       .since = {1, 2, 11, 13, 18, 19, 21, 23, 24, 25},
       .upgrade = {{1, paddings_to_pads}, {2, attributes_to_inputs}},
       .inputs = {{"data", kAllTensors, "T"},
                  {"pads", kInt64},
                  {"constant_value", kAllTensors, "T", Presence::optional},
                  {"axes", kInt32Or64, "Tind", Presence::optional}},
       .outputs = {{"output", kAllTensors, "T"}},
       .attributes = {{"mode", std::string_view("constant")}},
       .infer = infer_pad,
       .cost = move_cost,
       .kernels = {kernel<Pad<bind_pad>>(), kernel<PadByNumber<bind_pad>>("by number")},
       .gradient = pad_gradient,
       .value_inputs = {1, 3},
       .moves = Moves::among_others,
       .channels_last = {ChannelsLast::How::pads_vector},
       .returns_input = pads_nothing},
      {.name = "CenterCropPad",
       .since = {18},
       .inputs = {{"input_data", kCropTypes, "T"}, {"shape", kInt32Or64}},
       .outputs = {{"output_data", kCropTypes, "T"}},
       .attributes = {{"axes", AttributeDef::NoDefault{}}},
       .infer = infer_center_crop_pad,
       .cost = move_cost,
       .kernels = {kernel<Pad<bind_center>>(), kernel<PadByNumber<bind_center>>("by number")},
       .gradient = center_crop_pad_gradient,
       .value_inputs = {1}},
  };
}

}  // namespace treadle::ops
