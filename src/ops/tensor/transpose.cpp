// Implements Transpose, which permutes axes.
#include <fmt/format.h>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Returns element `axis` of the attribute perm. Without perm, the axes are reversed.
int64_t source_axis(const std::vector<int64_t>& perm, int rank, int axis) {
  return perm.empty() ? rank - 1 - axis : perm[static_cast<size_t>(axis)];
}

void infer_transpose(InferContext& c) {
  const std::vector<int64_t>& perm = c.get_ints("perm");
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const int rank = c.rank(0);
  if (!perm.empty() && static_cast<int>(perm.size()) != rank)
    throw Error(ErrorCode::invalid_argument, fmt::format("perm has {} axes, the input {}", perm.size(), rank));
  std::vector<bool> seen(static_cast<size_t>(rank), false);
  SymbolicShape out;
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t from = source_axis(perm, rank, axis);
    if (from < 0 || from >= rank || seen[static_cast<size_t>(from)])
      throw Error(ErrorCode::invalid_argument, fmt::format("perm[{}] = {} is outside [0, {}) or given twice", axis, from, rank));
    seen[static_cast<size_t>(from)] = true;
    out.push_back(c.shape(0)[static_cast<size_t>(from)]);
  }
  c.set_output(0, c.dtype(0), std::move(out));
  if (rank <= 1) keep_known(c);
}

struct Transpose {
  DType dtype;
  kernels::CopyPlan plan;
  static Transpose bind(BindContext& c) {
    const int rank = c.shape(0).rank();
    const std::vector<int64_t>& perm = c.get_ints("perm");
    int64_t axes[kMaxRank];
    for (int axis = 0; axis < rank; ++axis) axes[axis] = source_axis(perm, rank, axis);
    return {c.dtype(0), kernels::plan_transpose(c.shape(0).dims(), {axes, static_cast<size_t>(rank)})};
  }
  void run(RunContext& c) const { move_elements(plan, dtype, c.in<void>(0), 0, c.out<void>(0), 0, c.pool()); }
};

// Returns true if a Transpose moves no element: its axes with more than one element stay in order. The shape is known to be unchanged.
bool moves_no_axis(const Graph& graph, const Node& node) {
  const Type& type = graph.type(node.inputs[0]);
  const auto& perm = node.attributes.get_ints("perm");
  if (!type.has_rank()) return false;
  if (perm.empty()) return type.rank() < 2;
  int64_t last = -1;
  for (int64_t axis : perm) {
    if (axis < 0 || axis >= type.rank()) return false;
    if ((*type.shape)[static_cast<size_t>(axis)].is_const(1)) continue;
    if (axis < last) return false;
    last = axis;
  }
  return keeps_type_and_shape(graph, node);
}

Gradients transpose_gradient(GradientContext& g) {
  const std::vector<int64_t>& perm = g.attributes().get_ints("perm");
  if (perm.empty()) return {g.op("Transpose", {g.grad_output(0)})};
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return {g.transpose(g.grad_output(0), std::move(inverse))};
}

}  // namespace

std::vector<OpDef> transpose_ops() {
  return {{.name = "Transpose",
           .since = {1, 13, 21, 23, 24, 25},
           .inputs = {{"data", kAllTensors, "T"}},
           .outputs = {{"transposed", kAllTensors, "T"}},
           .attributes = {{"perm", AttributeDef::NoDefault{}}},
           .infer = infer_transpose,
           .cost = move_cost,
           .kernels = {kernel<Transpose>()},
           .gradient = transpose_gradient,
           .moves = Moves::anywhere,
           .quantization = Quantization::chooses,
           .channels_last = {ChannelsLast::How::permutation},
           .returns_input = moves_no_axis}};
}

}  // namespace treadle::ops
