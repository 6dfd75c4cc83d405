// Implements Softmax, LogSoftmax and Hardmax (ONNX, opset 13) along one axis. Softmax is exp(x - max x) / sum exp(x - max x), LogSoftmax is
// its logarithm, and Hardmax is 1 at the first maximum and 0 elsewhere.
#include "kernels/normalization/softmax.h"

#include <type_traits>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/elementwise/convert.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/axis_rows.h"
#include "ops/math/elementwise.h"

namespace treadle::ops {
namespace {

void infer(InferContext& c) {
  if (c.has_rank(0)) c.axis("axis", -1, c.rank(0));
  c.set_output(0, c.input(0));
}

enum class Function { softmax, log_softmax, hardmax };

template <Function kFunction, typename T>
void compute(const AxisRows& rows, const T* in, T* out, ThreadPool* pool) {
  if (kFunction == Function::softmax) kernels::softmax(rows.outer, rows.length, rows.inner, in, out, pool);
  if (kFunction == Function::log_softmax) kernels::log_softmax(rows.outer, rows.length, rows.inner, in, out, pool);
  if (kFunction == Function::hardmax) kernels::hardmax(rows.outer, rows.length, rows.inner, in, out, pool);
}

template <Function kFunction>
struct Of {
  template <typename T>
  struct Kernel {
    static constexpr bool kNarrow = !std::is_floating_point_v<T>;
    AxisRows rows;
    int64_t n;

    static Kernel bind(BindContext& c) {
      int rank = c.shape(0).rank();
      Kernel k{rank == 0 ? AxisRows{} : AxisRows::of(c.shape(0), c.axis("axis", -1, rank)), c.num_elements(0)};
      if (kNarrow) c.request_scratch(2 * static_cast<size_t>(k.n) * sizeof(float));
      return k;
    }
    void run(RunContext& c) const {
      const T* in = c.in<T>(0);
      T* out = c.out<T>(0);
      if constexpr (!kNarrow) {
        compute<kFunction, T>(rows, in, out, c.pool());
      } else {
        // There are no softmax kernels for 16-bit floats, so they are converted to float, computed, and rounded back.
        float* wide_in = c.scratch<float>();
        float* wide_out = wide_in + n;
        parallel_for(c.pool(), n, kElementwiseGrain,
                     [&](int64_t begin, int64_t end) { kernels::widen(in + begin, wide_in + begin, end - begin); });
        compute<kFunction, float>(rows, wide_in, wide_out, c.pool());
        parallel_for(c.pool(), n, kElementwiseGrain,
                     [&](int64_t begin, int64_t end) { kernels::narrow(wide_out + begin, out + begin, end - begin); });
      }
    }
  };
};

// Upgrades a node from before opset 13, where all axes from `axis` (default 1) on were normalized together. If `axis` is not the last one,
// the tensor is flattened to a matrix.
void flatten_from_axis(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  int64_t axis = node.attributes.get_int("axis", 1);
  const Type& type = graph.type(node.inputs[0]);
  node.attributes.set("axis", int64_t{-1});
  if (type.has_rank()) {
    int rank = type.rank();
    if (rank == 0 || normalize_axis(axis, rank) == rank - 1) return;
  } else if (axis == -1) {
    return;
  }
  ValueId x = node.inputs[0], y = node.outputs[0];
  std::string op_type = node.op_type;
  NodeId shape = graph.add_node({.op_type = "Shape", .inputs = {x}}, id);
  NodeId flat = graph.add_node({.op_type = "Flatten", .inputs = {x}, .attributes = {{"axis", axis}}}, id);
  NodeId softmax = graph.add_node({.op_type = op_type, .inputs = {graph.node(flat).outputs[0]}, .attributes = {{"axis", int64_t{-1}}}}, id);
  NodeId back = graph.add_node({.op_type = "Reshape",
                                .inputs = {graph.node(softmax).outputs[0], graph.node(shape).outputs[0]},
                                .attributes = {{"allowzero", int64_t{1}}}},
                               id);
  graph.replace_uses(y, graph.node(back).outputs[0]);
  graph.remove_node(id);
}

template <int kFlops>
OpDef along_axis(std::string_view name, std::vector<KernelDef> kernels) {
  return {.name = name,
          .since = {1, 11, 13},
          .upgrade = {{11, flatten_from_axis}},
          .inputs = {{"input", kFloats, "T"}},
          .outputs = {{"output", kFloats, "T"}},
          .attributes = {{"axis", int64_t{-1}}},
          .infer = infer,
          .cost = elementwise_cost<kFlops>,
          .kernels = std::move(kernels)};
}

// Uses dx = y (dy - sum(y dy)). This reads y but not x, so x need not be kept until the backward pass.
Gradients softmax_gradient(GradientContext& g) {
  const ValueId y = widened(g, g.output(0)), dy = widened(g, g.grad_output(0));
  const int64_t axis = g.attributes().get_int("axis", -1);
  if (g.type(y).has_rank() && g.type(y).rank() > 0 && normalize_axis(axis, g.type(y).rank()) == g.type(y).rank() - 1)
    return narrowed(g, {g.op("SoftmaxGrad", {y, dy}, {}, "treadle")});
  const ValueId dot = g.reduce_sum(g.mul(y, dy), {axis}, /*keepdims=*/true);
  return narrowed(g, {g.mul(y, g.sub(dy, dot))});
}

// Uses dx = dy - exp(y) sum(dy).
Gradients log_softmax_gradient(GradientContext& g) {
  const ValueId y = g.output(0), dy = g.grad_output(0);
  const ValueId sum = g.reduce_sum(dy, {g.attributes().get_int("axis", -1)}, /*keepdims=*/true);
  return {g.sub(dy, g.mul(g.op("Exp", {y}), sum))};
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  OpDef softmax = along_axis<20>("Softmax", typed<Of<Function::softmax>::Kernel, float, double, Float16, BFloat16>());
  OpDef log_softmax = along_axis<20>("LogSoftmax", typed<Of<Function::log_softmax>::Kernel, float, double, Float16, BFloat16>());
  softmax.half = log_softmax.half = HalfFloats::float32_by_itself;
  softmax.channels_last.how = ChannelsLast::How::axis;
  softmax.alias = log_softmax.alias = {may_reuse(0, 0)};
  std::vector<OpDef> ops = {softmax, log_softmax,
                            along_axis<1>("Hardmax", typed<Of<Function::hardmax>::Kernel, float, double, Float16, BFloat16>())};
  return with_gradients(std::move(ops),
                        {{"Softmax", softmax_gradient}, {"LogSoftmax", log_softmax_gradient}, {"Hardmax", gradients::none}});
}

}  // namespace treadle::ops
