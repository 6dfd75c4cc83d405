// Operators on rows of elements: reductions, softmax, normalizations, pools.
#include <algorithm>
#include <optional>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "kernels/conv/window.h"
#include "kernels/reduce/reduce.h"
#include "ops/checks.h"
#include "ops/math/axis_rows.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/nn/window.h"
#include "ops/reduction/axes.h"

namespace treadle::gpu {
namespace {

using kernels::Reduce;

struct RowState final : PackedState {
  const vulkan::Shader* shader = nullptr;
};
const vulkan::Shader& row_shader(RunContext& c) { return *c.packed<RowState>().shader; }

// Reductions.

constexpr int kMaxReducedRank = 4;  // limit for the kept dimensions, and for the reduced ones

struct Reduction {
  kernels::ReducePlan plan;

  static Reduction bind(BindContext& c) {
    count32(c.num_elements(0));
    return {kernels::plan_reduce(c.shape(0).dims(), ops::reduced_axes(c))};
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).word(count32(plan.kept.size)).word(count32(plan.reduced.size));
    const bool group_computes = plan.reduced.size > 1 && plan.reduced.inner_stride(0) == 1;
    push.word(uint32_t{group_computes});
    push_loop(push, plan.kept);
    push_loop(push, plan.reduced);
    stream().dispatch(row_shader(c), push.bytes(), group_computes ? groups_for(plan.kept.size) : groups_over(count32(plan.kept.size)));
  }

 private:
  static void push_loop(Push& push, const kernels::StridedLoop<1>& loop) {
    if (loop.rank > kMaxReducedRank)
      throw Error(ErrorCode::not_implemented, "a reduction over axes that lie in more than 4 runs, on the GPU");
    for (int i = loop.rank; i < kMaxReducedRank; ++i) push.word(uint32_t{1});
    for (int i = 0; i < loop.rank; ++i) push.word(static_cast<uint32_t>(std::max<int64_t>(loop.dims[i], 1)));
    for (int i = loop.rank; i < kMaxReducedRank; ++i) push.word(uint32_t{0});
    for (int i = 0; i < loop.rank; ++i) push.word(static_cast<uint32_t>(loop.strides[0][i]));
  }
};

struct GlobalPool : Reduction {
  static GlobalPool bind(BindContext& c) {
    const int rank = c.shape(0).rank();
    count32(c.num_elements(0));
    return {{kernels::plan_reduce(c.shape(0).dims(), ((1U << rank) - 1U) & ~3U)}};
  }
};

struct BroadcastGradient : Reduction {
  static BroadcastGradient bind(BindContext& c) {
    count32(c.num_elements(0));
    return {{kernels::plan_reduce(c.shape(0).dims(), ops::broadcast_axes(c.shape(0), c.output_shape(0)))}};
  }
};

struct ReductionRow {
  std::string_view op_type;
  Reduce op;
};
constexpr ReductionRow kReductions[] = {{"ReduceSum", Reduce::sum},
                                        {"ReduceMean", Reduce::mean},
                                        {"ReduceMax", Reduce::max},
                                        {"ReduceMin", Reduce::min},
                                        {"ReduceProd", Reduce::prod},
                                        {"ReduceL1", Reduce::l1},
                                        {"ReduceL2", Reduce::l2},
                                        {"ReduceLogSum", Reduce::log_sum},
                                        {"ReduceLogSumExp", Reduce::log_sum_exp},
                                        {"ReduceSumSquare", Reduce::sum_square},
                                        {"GlobalAveragePool", Reduce::mean},
                                        {"GlobalMaxPool", Reduce::max}};

// True for reductions whose result, for integers, is rounded or needs a 64-bit total.
bool ends_in_float(Reduce op) { return op == Reduce::mean || op == Reduce::l2 || op == Reduce::log_sum || op == Reduce::log_sum_exp; }

// Softmax.

struct Softmax {
  ops::AxisRows rows;

  static Softmax bind(BindContext& c) {
    const int rank = c.shape(0).rank();
    count32(c.num_elements(0));
    return {rank == 0 ? ops::AxisRows{} : ops::AxisRows::of(c.shape(0), c.axis("axis", -1, rank))};
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0));
    for (const int64_t extent : {rows.outer, rows.length, rows.inner}) push.word(static_cast<uint32_t>(extent));
    stream().dispatch(row_shader(c), push.bytes(), groups_for(rows.outer * rows.inner));
  }
};

// Normalizations of rows. Scale and bias have one element per row element, or one per channel.

struct Normalization {
  int64_t rows = 0, length = 0, channel_extent = 1, channels = 1;
  float epsilon = 0;
  bool has_scale = false, has_bias = false;

  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).pointer(c.in<void>(2));
    push.word(uint32_t{has_scale}).word(uint32_t{has_bias});
    for (const int64_t extent : {rows, length, channel_extent, channels}) push.word(static_cast<uint32_t>(extent));
    push.word(epsilon);
    stream().dispatch(row_shader(c), push.bytes(), groups_for(rows));
  }
};

struct RowNormalization : Normalization {
  static RowNormalization bind(BindContext& c) {
    const Shape& x = c.shape(0);
    const int axis = c.axis("axis", -1, x.rank());
    RowNormalization k;
    k.rows = x.product(0, axis);
    k.length = x.product(axis, x.rank());
    k.channels = k.length;
    k.epsilon = c.get_float("epsilon", 1e-5F);
    k.has_scale = c.has_input(1);
    k.has_bias = c.has_input(2);
    count32(x.num_elements());
    for (const int i : {1, 2})
      if (c.has_input(i) && c.num_elements(i) != k.length)
        throw Error(ErrorCode::not_implemented, "a scale or bias of another size than a row, on the GPU");
    return k;
  }
};

struct InstanceNormalization : Normalization {
  static InstanceNormalization bind(BindContext& c) {
    const Shape& x = c.shape(0);
    InstanceNormalization k;
    k.rows = x.product(0, 2);
    k.length = x.product(2, x.rank());
    k.channel_extent = 0;
    k.channels = x[1];
    k.epsilon = c.get_float("epsilon", 1e-5F);
    k.has_scale = k.has_bias = true;
    count32(x.num_elements());
    return k;
  }
};

struct BatchNormalization {
  int64_t count, inner, channels;
  float epsilon;

  static BatchNormalization bind(BindContext& c) {
    const Shape& x = c.shape(0);
    const BatchNormalization k{x.num_elements(), x.rank() < 3 ? 1 : x.product(2, x.rank()), x.rank() == 1 ? 1 : x[1],
                               c.get_float("epsilon", 1e-5F)};
    count32(k.count);
    for (int i = 1; i <= 4; ++i) ops::check_equal(c.num_elements(i), k.channels, "a parameter and the channels of X");
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0));
    for (int i = 0; i <= 4; ++i) push.pointer(c.in<void>(i));
    for (const int64_t extent : {count, inner, channels}) push.word(static_cast<uint32_t>(extent));
    push.word(epsilon);
    stream().dispatch(row_shader(c), push.bytes(), groups_over(count32(count)));
  }
};

// ArgMax, ArgMin.

struct ArgExtreme {
  ops::AxisRows rows;
  bool last;

  static ArgExtreme bind(BindContext& c) {
    count32(c.num_elements(0));
    const ArgExtreme k{ops::arg_extreme_rows(c), c.get_int("select_last_index") != 0};
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0));
    for (const int64_t extent : {rows.outer, rows.length, rows.inner}) push.word(static_cast<uint32_t>(extent));
    push.word(uint32_t{last});
    stream().dispatch(row_shader(c), push.bytes(), groups_for(rows.outer * rows.inner));
  }
};

// Pools.

struct Pool {
  kernels::Window window;
  int64_t count;

  static Pool bind(BindContext& c) {
    count32(c.num_elements(0));
    return {ops::bind_window(c.node().attributes, ops::spatial(c.shape(0)), ops::spatial(c.output_shape(0)), c.get_ints("kernel_shape")),
            c.output_shape(0).num_elements()};
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).word(count32(count));
    int64_t padded[3];
    for (int axis = 0; axis < 3; ++axis) padded[axis] = window.in[axis] + window.pad_end[axis];
    push_window(push, {&window.in, &window.out, &window.kernel, &window.stride, &window.dilation, &window.pad_begin, &padded});
    stream().dispatch(row_shader(c), push.bytes(), groups_over(count32(count)));
  }
};

DeviceKernel with_shader(const KernelDef& kernel, const std::string& file, DType dtype, uint32_t constant) {
  auto state = std::make_shared<RowState>();
  const uint32_t constants[] = {constant};
  state->shader = find_shader(file, dtype, constants);
  return state->shader ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

std::optional<uint32_t> pool_kind(const Node& node) {
  if (node.op_type == "MaxPool") return 0;
  if (node.op_type == "AveragePool") return node.attributes.get_int("count_include_pad", 0) != 0 ? 2 : 1;
  return std::nullopt;
}

}  // namespace

DeviceKernel find_row_kernel(const Graph& graph, const Node& node) {
  static const KernelDef reduction = kernel<Reduction>("gpu"), global_pool = kernel<GlobalPool>("gpu"), softmax = kernel<Softmax>("gpu"),
                         row_normalization = kernel<RowNormalization>("gpu"), instance = kernel<InstanceNormalization>("gpu"),
                         batch = kernel<BatchNormalization>("gpu"), extreme = kernel<ArgExtreme>("gpu"), pool = kernel<Pool>("gpu"),
                         broadcast_gradient = kernel<BroadcastGradient>("gpu");
  // Statistics are not computed; what nothing reads may stay unwritten.
  const auto is_read = [&](ValueId id) {
    return id != kNoValue &&
           (!graph.value(id).uses.empty() || std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end());
  };
  const bool has_more = std::any_of(node.outputs.begin() + 1, node.outputs.end(), is_read);
  const Type& x = graph.type(node.inputs[0]);
  if (node.is("BroadcastGrad", "treadle") && x.shape->size() <= 2 * kMaxReducedRank)
    return with_shader(broadcast_gradient, "reduce", x.dtype, static_cast<uint32_t>(Reduce::sum));
  if (!node.domain.empty() || has_more) return {};
  for (const ReductionRow& row : kReductions)
    if (node.op_type == row.op_type && !(is_integer(x.dtype) && ends_in_float(row.op)) && x.shape->size() <= 2 * kMaxReducedRank)
      return with_shader(row.op_type.starts_with("Global") ? global_pool : reduction, "reduce", x.dtype, static_cast<uint32_t>(row.op));
  if (node.op_type == "Softmax" || node.op_type == "LogSoftmax")
    return with_shader(softmax, "softmax", x.dtype, node.op_type == "LogSoftmax");
  if (node.op_type == "ArgMax" || node.op_type == "ArgMin") return with_shader(extreme, "arg_extreme", x.dtype, node.op_type == "ArgMax");
  const bool alike =
      std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return id == kNoValue || graph.type(id).dtype == x.dtype; });
  if (!alike) return {};
  if (node.op_type == "LayerNormalization" || node.op_type == "RMSNormalization") {
    // Scale and bias may be smaller than a row, which is known before the run only where the ranks agree.
    const auto axis = node.attributes.get_int("axis", -1);
    const auto rank = static_cast<int64_t>(x.shape->size()), row_rank = axis < 0 ? -axis : rank - axis;
    if (axis < -rank || axis >= rank) return {};
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue) continue;
      const SymbolicShape& parameter = *graph.type(node.inputs[i]).shape;
      if (static_cast<int64_t>(parameter.size()) != row_rank || !std::equal(parameter.begin(), parameter.end(), x.shape->end() - row_rank))
        return {};
    }
    return with_shader(row_normalization, "normalize", x.dtype, node.op_type == "LayerNormalization");
  }
  if (node.op_type == "BatchNormalization" && node.attributes.get_int("training_mode") == 0)
    return with_shader(batch, "batch_normalization", x.dtype, 0);
  if (node.op_type == "InstanceNormalization") return with_shader(instance, "normalize", x.dtype, 1);
  if (const std::optional<uint32_t> kind = pool_kind(node)) return with_shader(pool, "pool", x.dtype, *kind);
  return {};
}

}  // namespace treadle::gpu
