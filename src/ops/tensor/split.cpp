// Implements Split, which divides a tensor into parts along an axis.
#include <fmt/format.h>

#include "graph/infer.h"
#include "graph/inferred_types.h"
#include "graph/op_def.h"
#include "ops/decomposition.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_split(InferContext& c) {
  const int count = c.num_outputs();
  if (c.has_input(1) == c.attributes().has("num_outputs"))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} the input split {} the attribute num_outputs is given; ONNX expects one of them",
                            c.has_input(1) ? "both" : "neither", c.has_input(1) ? "and" : "nor"));
  if (!c.has_rank(0)) {
    for (int i = 0; i < count; ++i) c.set_output_dtype(i, c.dtype(0));
    return;
  }
  const auto axis = static_cast<size_t>(c.axis("axis", 0, c.rank(0)));
  const Dim extent = c.shape(0)[axis];
  std::vector<Dim> lengths;
  if (auto wanted = c.known(1)) {
    if (static_cast<int>(wanted->size()) != count)
      throw Error(ErrorCode::invalid_argument, fmt::format("split names {} parts, the node has {} outputs", wanted->size(), count));
    Dim total = 0;
    for (const Dim& length : *wanted) {
      if (length.is_const() && length.value() < 0)
        throw Error(ErrorCode::invalid_argument, fmt::format("a part of {} elements", length.value()));
      total = total + length;
    }
    if (total.is_const() && extent.is_const() && total != extent)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the parts add up to {}, axis {} has {} elements", total.value(), axis, extent.value()));
    assume_equal(total, extent, "the parts and the extent");
    lengths = std::move(*wanted);
  } else if (c.has_input(1)) {
    for (int i = 0; i < count; ++i) lengths.push_back(c.data_dependent_dim("split"));
  } else {
    const int64_t parts = c.get_int("num_outputs");
    if (parts != count) throw Error(ErrorCode::invalid_argument, fmt::format("num_outputs = {}, the node has {} outputs", parts, count));
    const Dim chunk = ceil_div(extent, parts), last = extent - chunk * (parts - 1);
    if (last.is_const() && last.value() < 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} elements cannot be split into {} parts of {}", extent.value(), parts, chunk.value()));
    lengths.assign(static_cast<size_t>(count), chunk);
    lengths.back() = last;
  }
  const auto values = c.rank(0) == 1 ? c.known(0) : std::nullopt;
  size_t first = 0;
  bool follow = values.has_value();
  for (int i = 0; i < count; ++i) {
    const Dim& length = lengths[static_cast<size_t>(i)];
    SymbolicShape out = c.shape(0);
    out[axis] = length;
    c.set_output(i, c.dtype(0), std::move(out));
    follow = follow && length.is_const() && first + static_cast<size_t>(length.value()) <= values->size();
    if (!follow) continue;
    const auto n = static_cast<size_t>(length.value());
    c.set_known(i, KnownValues(values->begin() + static_cast<int64_t>(first), values->begin() + static_cast<int64_t>(first + n)));
    first += n;
  }
}

Cost cost(const ShapeContext& c) { return {0, 2 * c.size_bytes(0)}; }

// A kernel for at most kMaxOutputs outputs: its bound state has arrays of fixed size. One instance is for few outputs, one for many.
template <int kMaxOutputs>
struct Split {
  DType dtype;
  int count;
  int64_t outer, pitch;          // number of rows; row stride of the input, in elements
  int64_t lengths[kMaxOutputs];  // row length of each output, in elements
  int64_t steps[kMaxOutputs];    // row stride of each output, in elements

  static constexpr uint32_t strided_inputs = 1, strided_outputs = ~0U;  // rows along the last axis may be strided

  static std::string declines(const CreateContext& c) {
    const size_t outputs = c.node().outputs.size();
    return outputs <= kMaxOutputs ? "" : fmt::format("for at most {} outputs, not {}", kMaxOutputs, outputs);
  }
  static Split bind(BindContext& c) {
    Split k;
    const Shape& in = c.shape(0);
    const int axis = c.axis("axis", 0, in.rank());
    k.dtype = c.dtype(0);
    k.count = c.num_outputs();
    if (k.count == 0) throw Error(ErrorCode::invalid_argument, "there is no output");
    k.outer = in.product(0, axis);
    const int64_t inner = in.product(axis + 1, in.rank());
    const bool by_rows = axis + 1 == in.rank();
    k.pitch = by_rows ? c.input_step(0) : in[axis] * inner;
    const int64_t chunk = (in[axis] + k.count - 1) / k.count;
    int64_t left = in[axis];
    for (int i = 0; i < k.count; ++i) {
      // The length does not come from the output's shape, because an unused output has none.
      const int64_t length = c.has_input(1) ? c.value_at(1, i) : std::min(chunk, left);
      left -= length;
      if (length < 0 || left < 0) throw Error(ErrorCode::invalid_argument, fmt::format("the parts do not fit into {} elements", in[axis]));
      k.lengths[i] = length * inner;
      k.steps[i] = by_rows && c.has_output(i) ? c.output_step(i) : k.lengths[i];
    }
    if (left > 0) throw Error(ErrorCode::invalid_argument, fmt::format("the parts leave {} of {} elements", left, in[axis]));
    return k;
  }
  void run(RunContext& c) const {
    int64_t offset = 0;
    for (int i = 0; i < count; ++i) {
      void* part = c.out<void>(i);
      const bool in_place =
          // The part may be a view of the input, so that no copy is needed.
          (outer == 1 || steps[i] == pitch) && part && lies_at(part, dtype, c.in<void>(0), offset);
      if (part && !in_place) move_blocks(dtype, outer, lengths[i], c.in<void>(0), offset, pitch, part, 0, steps[i], c.pool());
      offset += lengths[i];
    }
  }
};

void split_to_input(Graph& graph, NodeId id) { ints_to_input(graph, id, "split", 1); }

// Sets num_outputs. Before opset 18, a Split without lengths gave equal parts, as many as outputs. Since then the last part may be shorter.
// So if the parts are not known to be equal, nodes compute their lengths.
void give_num_outputs(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  if (node.has_input(1)) return;
  const auto parts = static_cast<int64_t>(node.outputs.size());
  const int64_t axis = node.attributes.get_int("axis", 0);
  if (const Type& type = graph.type(node.inputs[0]); type.has_rank()) {
    const Dim& extent = (*type.shape)[static_cast<size_t>(normalize_axis(axis, type.rank(), "axis"))];
    if (floor_div(extent, parts) * Dim(parts) == extent) return node.attributes.set("num_outputs", parts);
    if (extent.is_const())
      throw Error(ErrorCode::invalid_argument, fmt::format("{} elements cannot be split into {} equal parts", extent.value(), parts));
  }
  NodeWriter w(graph, id, node.name);
  Attributes place{{"start", axis}};
  if (axis != -1) place.set("end", axis + 1);
  const ValueId count = w.ints({parts}), extent = w.op("Shape", {node.inputs[0]}, std::move(place));
  const ValueId lengths = w.op("Expand", {w.op("Div", {extent, count}), count});
  graph.resize_inputs(id, 2);
  graph.set_input(id, 1, lengths);
}

Gradients split_gradient(GradientContext& g) {
  std::vector<ValueId> parts;
  for (size_t i = 0; i < g.node().outputs.size(); ++i)
    parts.push_back(g.grad_output(i) != kNoValue ? g.grad_output(i) : zeros_like(g, g.output(i)));
  return {g.op("Concat", std::move(parts), {{"axis", g.attributes().get_int("axis", 0)}})};
}

}  // namespace

std::vector<OpDef> split_ops() {
  return {{.name = "Split",
           .since = {1, 2, 11, 13, 18},
           .upgrade = {{11, split_to_input}, {13, give_num_outputs}},
           .inputs = {{"input", kAllTensors, "T"}, {"split", kInt64, "", Presence::optional}},
           .outputs = {{"outputs", kAllTensors, "T", Presence::variadic}},
           .attributes = {{"axis", int64_t{0}}, {"num_outputs", AttributeDef::NoDefault{}}},
           .infer = infer_split,
           .cost = cost,
           .kernels = {kernel<Split<16>>(), kernel<Split<256>>("many outputs"), kernel<Split<4096>>("very many outputs")},
           .gradient = split_gradient,
           .value_inputs = {1},
           .pieces = Pieces::split,
           .moves = Moves::anywhere,
           .quantization = Quantization::chooses,
           .channels_last = {ChannelsLast::How::axis},
           .returns_input = keeps_type_and_shape}};
}

}  // namespace treadle::ops
