// Implements Concat, which joins tensors along an axis.
#include <fmt/format.h>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_concat(InferContext& c) {
  const int num_inputs = c.num_inputs();
  int with_rank = -1;
  bool all_ranks = true;
  for (int i = 0; i < num_inputs; ++i) {
    if (c.has_rank(i))
      with_rank = i;
    else
      all_ranks = false;
  }
  DType dtype = DType::undefined;
  for (int i = 0; i < num_inputs && dtype == DType::undefined; ++i) dtype = c.dtype(i);
  if (with_rank < 0) return c.set_output_dtype(0, dtype);
  const int rank = c.rank(with_rank);
  const auto axis = static_cast<size_t>(c.axis("axis", 0, rank));
  SymbolicShape out = c.shape(with_rank);
  Dim length = 0;
  for (int i = 0; i < num_inputs; ++i) {
    if (!c.has_rank(i)) continue;
    const SymbolicShape& in = c.shape(i);
    if (c.rank(i) != rank) throw Error(ErrorCode::invalid_argument, fmt::format("inputs are of rank {} and {}", rank, c.rank(i)));
    for (size_t a = 0; a < in.size(); ++a) {
      if (a != axis && out[a] != in[a]) out[a] = unify(out[a], in[a], fmt::format("axis {} of input {}", a, i));
    }
    length = length + in[axis];
  }
  out[axis] = all_ranks ? length : c.data_dependent_dim("concat");
  c.set_output(0, dtype, std::move(out));

  if (rank != 1) return;
  KnownValues values;
  for (int i = 0; i < num_inputs; ++i) {
    auto part = c.known(i);
    if (!part || static_cast<int64_t>(values.size() + part->size()) > kMaxKnownValues) return;
    values.insert(values.end(), part->begin(), part->end());
  }
  c.set_known(0, std::move(values));
}

// A kernel for at most kMaxInputs inputs, because its bound state has arrays of fixed size. One instance is for few inputs, one for many.
template <int kMaxInputs>
struct Concat {
  DType dtype;
  int count;
  int64_t outer, pitch;         // number of rows; row stride of the output, in elements
  int64_t lengths[kMaxInputs];  // row length of each input, in elements
  int64_t steps[kMaxInputs];    // row stride of each input, in elements

  static constexpr uint32_t strided_inputs = ~0U, strided_outputs = 1;  // rows along the last axis may be strided

  static std::string declines(const CreateContext& c) {
    const int inputs = c.node().num_formal_inputs;
    return inputs <= kMaxInputs ? "" : fmt::format("for at most {} inputs, not {}", kMaxInputs, inputs);
  }
  static Concat bind(BindContext& c) {
    Concat k;
    const Shape& out = c.output_shape(0);
    const int axis = c.axis("axis", 0, out.rank());
    k.dtype = c.output_dtype(0);
    k.count = c.num_inputs();
    k.outer = out.product(0, axis);
    k.pitch = out.product(axis, out.rank());
    int64_t total = 0;
    for (int i = 0; i < k.count; ++i) {
      const Shape& in = c.shape(i);
      check_equal(in.rank(), out.rank(), "ranks of an input and of the output");
      // Inference assumed that the extents of different inputs are equal where they were symbols. This check compares their values.
      for (int a = 0; a < in.rank(); ++a)
        if (a != axis) check_equal(in[a], out[a], "extents of an input and of the output beside the axis");
      k.lengths[i] = in.product(axis, in.rank());
      k.steps[i] = axis + 1 == in.rank() ? c.input_step(i) : k.lengths[i];
      total += k.lengths[i];
    }
    check_equal(total, k.pitch, "extents of the inputs along the axis and of the output");
    if (axis + 1 == out.rank()) k.pitch = c.output_step(0);
    return k;
  }
  void run(RunContext& c) const {
    int64_t offset = 0;
    for (int i = 0; i < count; ++i) {
      // The executor may have placed the input inside the output, so that no copy is needed.
      const bool in_place = (outer == 1 || steps[i] == pitch) && lies_at(c.in<void>(i), dtype, c.out<void>(0), offset);
      if (!in_place) move_blocks(dtype, outer, lengths[i], c.in<void>(i), 0, steps[i], c.out<void>(0), offset, pitch, c.pool());
      offset += lengths[i];
    }
  }
};

// In opset 1, the default of `axis` was 1. This upgrade sets the attribute explicitly.
void give_axis(Graph& graph, NodeId id) {
  Attributes& attributes = graph.node(id).attributes;
  if (!attributes.has("axis")) attributes.set("axis", int64_t{1});
}

Gradients concat_gradient(GradientContext& g) {
  const int rank = rank_of(g, g.output(0));
  const int64_t axis = normalize_axis(g.attributes().get_int("axis"), rank);
  const auto count = static_cast<size_t>(g.node().num_formal_inputs);
  if (count == 1) return {g.grad_output(0)};
  std::vector<ValueId> extents;
  for (size_t i = 0; i < count; ++i) extents.push_back(g.op("Shape", {g.input(i)}, {{"start", axis}, {"end", axis + 1}}));
  const ValueId sizes = g.op("Concat", std::move(extents), {{"axis", int64_t{0}}});
  return g.op_n("Split", {g.grad_output(0), sizes}, static_cast<int>(count), {{"axis", axis}});
}

}  // namespace

std::vector<OpDef> concat_ops() {
  return {{.name = "Concat",
           .since = {1, 4, 11, 13},
           .upgrade = {{1, give_axis}},
           .inputs = {{"inputs", kAllTensors, "T", Presence::variadic}},
           .outputs = {{"concat_result", kAllTensors, "T"}},
           .attributes = {{"axis", AttributeDef::Required{}}},
           .infer = infer_concat,
           .cost = move_cost,
           .kernels = {kernel<Concat<16>>(), kernel<Concat<256>>("many inputs"), kernel<Concat<4096>>("very many inputs")},
           .gradient = concat_gradient,
           .pieces = Pieces::concat,
           .moves = Moves::anywhere,
           .quantization = Quantization::chooses,
           .channels_last = {ChannelsLast::How::axis},
           .returns_input = [](const Graph&, const Node& node) { return node.num_formal_inputs == 1; }}};
}

}  // namespace treadle::ops
