// Computes operators on rows of elements: reductions, softmax, normalizations, pools.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "kernels/conv/window.h"
#include "kernels/reduce/reduce.h"
#include "ops/math/axis_rows.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/nn/normalization.h"
#include "ops/nn/window.h"
#include "ops/reduction/axes.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

using kernels::Reduce;

struct RowState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  DType computed = DType::undefined;  // dtype in which the shader computes
};
const vulkan::Shader& row_shader(RunContext& c) { return *c.packed<RowState>().shader; }

// Reductions.

constexpr int kMaxReducedRank = 4;  // limit for the number of kept axes, and of reduced axes

void push_loop(Push& push, const kernels::StridedLoop<1>& loop) {
  if (loop.rank > kMaxReducedRank)
    throw Error(ErrorCode::not_implemented, "a reduction over axes that lie in more than 4 runs, on the GPU");
  for (int i = loop.rank; i < kMaxReducedRank; ++i) push.word(uint32_t{1});
  for (int i = 0; i < loop.rank; ++i) push.word(static_cast<uint32_t>(std::max<int64_t>(loop.dims[i], 1)));
  for (int i = loop.rank; i < kMaxReducedRank; ++i) push.word(uint32_t{0});
  for (int i = 0; i < loop.rank; ++i) push.word(static_cast<uint32_t>(loop.strides[0][i]));
}

/// Returns the maximum or minimum of an empty set of integers: the lowest or the highest number of the type.
int64_t extreme_of_none(DType dtype, bool maximum) {
  if (dtype == DType::boolean) return maximum ? 0 : 1;
  if (!is_integer(dtype)) return 0;
  const auto bits = static_cast<int>(bits_of(dtype));
  if (!is_signed_integer(dtype)) return maximum ? 0 : static_cast<int64_t>(bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1);
  const int64_t highest = static_cast<int64_t>(~uint64_t{0} >> (65 - bits));
  return maximum ? -highest - 1 : highest;
}

struct Reduction {
  kernels::ReducePlan plan;
  ConvertedOperand x, y;
  int64_t otherwise;

  static Reduction bind(BindContext& c) { return over(c, kernels::plan_reduce(c.shape(0).dims(), ops::reduced_axes(c))); }
  void run(RunContext& c) const {
    Push push;
    push.pointer(y.result(c, 0)).pointer(x.read(c, 0)).word(count32(plan.kept.size)).word(count32(plan.reduced.size));
    const bool group_computes = plan.reduced.size > 1 && plan.reduced.inner_stride(0) == 1;
    push.word(uint32_t{group_computes});
    push_loop(push, plan.kept);
    push_loop(push, plan.reduced);
    push.word(static_cast<uint32_t>(otherwise)).word(static_cast<uint32_t>(static_cast<uint64_t>(otherwise) >> 32));
    stream().dispatch(row_shader(c), push.bytes(), group_computes ? groups_for(plan.kept.size) : groups_over(count32(plan.kept.size)));
    y.store(c, 0);
  }

 protected:
  static Reduction over(BindContext& c, const kernels::ReducePlan& plan) {
    Reduction k{plan, {}, {}, extreme_of_none(c.dtype(0), c.node().op_type.ends_with("Max"))};
    const DType computed = c.packed<RowState>().computed;
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), computed, c.num_elements(0));
    k.y = ConvertedOperand::reserve(layout, c.output_dtype(0), computed, c.output_shape(0).num_elements());
    c.request_scratch(layout.total());
    return k;
  }
};

struct GlobalPool : Reduction {
  static GlobalPool bind(BindContext& c) {
    const int rank = c.shape(0).rank();
    return {over(c, kernels::plan_reduce(c.shape(0).dims(), ((1U << rank) - 1U) & ~3U))};
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

/// MeanVarianceNormalization.
struct MeanVariance {
  kernels::ReducePlan plan;

  static MeanVariance bind(BindContext& c) {
    count32(c.num_elements(0));
    return {kernels::plan_reduce(c.shape(0).dims(), ops::mean_variance_axes(c))};
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).word(count32(plan.kept.size)).word(count32(plan.reduced.size));
    push_loop(push, plan.kept);
    push_loop(push, plan.reduced);
    stream().dispatch(row_shader(c), push.bytes(), groups_for(plan.kept.size));
  }
};

/// Returns true if the rank is small enough for the shader. A rank that is unknown before the run is accepted; it is checked when the
/// kernel is bound.
bool is_reducible(const Type& x) { return !x.has_rank() || x.shape->size() <= 2 * kMaxReducedRank; }

/// Returns the dtype in which elements are reduced. uint64 is summed and multiplied as int64, because the bits are the same.
DType reduced_type(DType dtype, Reduce op) {
  const bool adds = op == Reduce::sum || op == Reduce::prod || op == Reduce::sum_square;
  return adds && dtype == DType::uint64 ? DType::int64 : compared_type(dtype);
}

// Returns true for reductions that are not supported for integers: their result is rounded, or they need a 64-bit sum.
bool ends_in_float(Reduce op) { return op == Reduce::mean || op == Reduce::l2 || op == Reduce::log_sum || op == Reduce::log_sum_exp; }

/// Computes Softmax, LogSoftmax, Hardmax and LpNormalization along an axis.
struct AlongAxis {
  ops::AxisRows rows;

  static AlongAxis bind(BindContext& c) {
    const int rank = c.shape(0).rank();
    count32(c.num_elements(0));
    return {rank == 0 ? ops::AxisRows{} : ops::AxisRows::of(c.shape(0), c.axis("axis", -1, rank))};
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0));
    push_sizes(push, {rows.outer, rows.length, rows.inner});
    stream().dispatch(row_shader(c), push.bytes(), groups_for(rows.outer * rows.inner));
  }
};

// Normalizations of rows. Scale and bias have one number per element of a row, or one per channel.

struct Normalization {
  int64_t rows = 0, length = 0, row_channels = 0, channel_extent = 1, channels = 1;
  float epsilon = 0;
  bool has_scale = false, has_bias = false;
  bool has_statistics[2] = {};  // LayerNormalization's outputs: the mean and 1 / deviation of rows

  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).pointer(c.in<void>(2));
    for (const int i : {0, 1}) push.pointer(has_statistics[i] ? c.out<void>(i + 1) : nullptr);
    for (const bool flag : {has_scale, has_bias, has_statistics[0], has_statistics[1]}) push.word(uint32_t{flag});
    push_sizes(push, {rows, length, row_channels, channel_extent, channels});
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
    for (const int i : {0, 1}) k.has_statistics[i] = c.has_output(i + 1) && c.output_dtype(i + 1) == DType::float32;
    count32(x.num_elements());
    for (const int i : {1, 2})
      if (c.has_input(i) && c.num_elements(i) != k.length)
        throw Error(ErrorCode::not_implemented, "a scale or bias of another size than a row, on the GPU");
    return k;
  }
};

/// InstanceNormalization and GroupNormalization. A row consists of the channels of one group in one image.
struct GroupNormalization : Normalization {
  static GroupNormalization bind(BindContext& c) {
    const auto x = ops::ChannelGroups::bind(c);
    GroupNormalization k;
    k.channels = std::max<int64_t>(x.channels, 1);
    k.rows = x.N * x.groups;
    k.row_channels = x.channels / std::max<int64_t>(x.groups, 1);
    k.channel_extent = std::max<int64_t>(x.inner, 1);
    k.length = k.row_channels * x.inner;
    k.epsilon = c.get_float("epsilon", 1e-5F);
    k.has_scale = k.has_bias = true;
    count32(c.num_elements(0));
    return k;
  }
};

/// LRN.
struct LocalResponse : ops::LocalResponsePlan {
  static LocalResponse bind(BindContext& c) {
    const LocalResponse k{LocalResponsePlan::bind(c)};
    count32(c.num_elements(0)), count32(k.size);
    return k;
  }
  void run(RunContext& c) const {
    const uint32_t count = count32(N * channels * inner);
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0));
    push_sizes(push, {count, channels, inner, (size - 1) / 2, size / 2});
    push.word(alpha).word(beta).word(bias);
    stream().dispatch(row_shader(c), push.bytes(), groups_over(count));
  }
};

struct BatchNormalization : ops::BatchPlanes {
  float epsilon;

  static BatchNormalization bind(BindContext& c) {
    count32(c.num_elements(0));
    return {BatchPlanes::bind(c), c.get_float("epsilon", 1e-5F)};
  }
  void run(RunContext& c) const {
    const uint32_t count = count32(N * channels * inner);
    Push push;
    push.pointer(c.out<void>(0));
    for (int i = 0; i <= 4; ++i) push.pointer(c.in<void>(i));
    push_sizes(push, {count, inner, channels});
    push.word(epsilon);
    stream().dispatch(row_shader(c), push.bytes(), groups_over(count));
  }
};

// ArgMax, ArgMin.

struct ArgExtreme {
  ops::AxisRows rows;
  bool last;
  ConvertedOperand x;

  static ArgExtreme bind(BindContext& c) {
    ArgExtreme k{ops::arg_extreme_rows(c), c.get_int("select_last_index") != 0, {}};
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), c.packed<RowState>().computed, c.num_elements(0));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(x.read(c, 0));
    push_sizes(push, {rows.outer, rows.length, rows.inner});
    push.word(uint32_t{last});
    stream().dispatch(row_shader(c), push.bytes(), groups_for(rows.outer * rows.inner));
  }
};

// Pools.

struct Pool {
  kernels::Window window;
  int64_t count, order;
  ConvertedOperand x, y;

  static Pool bind(BindContext& c) {
    const Shape& x = c.shape(0);
    Pool k{};
    k.order = ops::bind_norm_order(c);
    if (c.node().op_type == "GlobalLpPool") {  // the window covers all spatial axes
      const int64_t plane[] = {x.product(2, x.rank())}, taps[] = {std::max<int64_t>(plane[0], 1)}, one[] = {1};
      k.window = kernels::make_window(plane, one, taps, {}, {}, {});
    } else {
      k.window = ops::bind_pool(c);
    }
    k.count = count32(c.output_shape(0).num_elements());
    count32(c.num_elements(0));
    const DType computed = c.packed<RowState>().computed;
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), computed, c.num_elements(0));
    k.y = ConvertedOperand::reserve(layout, c.output_dtype(0), computed, k.count);
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(y.result(c, 0)).pointer(x.read(c, 0)).word(count32(count));
    int64_t padded[3];
    for (int axis = 0; axis < 3; ++axis) padded[axis] = window.in[axis] + window.pad_end[axis];
    push_window(push, {&window.in, &window.out, &window.kernel, &window.stride, &window.dilation, &window.pad_begin, &padded});
    push.word(signed32(order));
    stream().dispatch(row_shader(c), push.bytes(), groups_over(count32(count)));
    y.store(c, 0);
  }
};

DeviceKernel with_shader(const KernelDef& kernel, const std::string& file, DType dtype, uint32_t constant) {
  auto state = std::make_shared<RowState>();
  state->computed = dtype;
  const uint32_t constants[] = {constant};
  state->shader = find_shader(file, dtype, constants);
  return state->shader ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

std::optional<uint32_t> pool_kind(const Node& node) {
  if (node.op_type == "MaxPool") return 0;
  if (node.op_type == "AveragePool") return node.attributes.get_int("count_include_pad", 0) != 0 ? 2 : 1;
  if (node.op_type == "LpPool" || node.op_type == "GlobalLpPool") return 3;
  return std::nullopt;
}

}  // namespace

DeviceKernel find_row_kernel(const Graph& graph, const Node& node) {
  static const KernelDef reduction = kernel<Reduction>("gpu"), global_pool = kernel<GlobalPool>("gpu"), along = kernel<AlongAxis>("gpu"),
                         row_normalization = kernel<RowNormalization>("gpu"), group = kernel<GroupNormalization>("gpu"),
                         batch = kernel<BatchNormalization>("gpu"), extreme = kernel<ArgExtreme>("gpu"), pool = kernel<Pool>("gpu"),
                         mean_variance = kernel<MeanVariance>("gpu"), response = kernel<LocalResponse>("gpu"),
                         broadcast_gradient = kernel<BroadcastGradient>("gpu");
  // Besides output 0, the shader writes only the statistics of LayerNormalization. No other output may be used.
  const auto is_read = [&](ValueId id) {
    return id != kNoValue &&
           (!graph.value(id).uses.empty() || std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end());
  };
  const bool has_more = std::any_of(node.outputs.begin() + 1, node.outputs.end(), is_read);
  const Type& x = graph.type(node.inputs[0]);
  if (node.is("BroadcastGrad", "treadle") && x.has_rank() && is_reducible(x))
    return with_shader(broadcast_gradient, "reduce", x.dtype, static_cast<uint32_t>(Reduce::sum));
  const auto is_float32 = [&](ValueId id) { return id == kNoValue || graph.type(id).dtype == DType::float32; };
  const bool writes_more = node.op_type == "LayerNormalization" && std::all_of(node.outputs.begin() + 1, node.outputs.end(), is_float32);
  if (!node.domain.empty() || (has_more && !writes_more)) return {};
  for (const ReductionRow& row : kReductions)
    if (node.op_type == row.op_type && !(is_integer(x.dtype) && ends_in_float(row.op)) && is_reducible(x))
      return with_shader(row.op_type.starts_with("Global") ? global_pool : reduction, "reduce", reduced_type(x.dtype, row.op),
                         static_cast<uint32_t>(row.op));
  if (node.op_type == "Softmax" || node.op_type == "LogSoftmax")
    return with_shader(along, "softmax", x.dtype, node.op_type == "LogSoftmax");
  if (node.op_type == "Hardmax") return with_shader(along, "row_operator", x.dtype, 2);
  if (node.op_type == "LpNormalization") {
    const int64_t order = node.attributes.get_int("p", 2);
    return order == 1 || order == 2 ? with_shader(along, "row_operator", x.dtype, order == 2) : DeviceKernel();
  }
  if (node.op_type == "MeanVarianceNormalization" && is_reducible(x)) return with_shader(mean_variance, "mean_variance", x.dtype, 0);
  if (node.op_type == "LRN") return with_shader(response, "lrn", x.dtype, 0);
  if (node.op_type == "ArgMax" || node.op_type == "ArgMin")
    return with_shader(extreme, "arg_extreme", compared_type(x.dtype), node.op_type == "ArgMax");
  const bool alike =
      std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return id == kNoValue || graph.type(id).dtype == x.dtype; });
  if (!alike) return {};
  if (node.op_type == "LayerNormalization" || node.op_type == "RMSNormalization") {
    const auto has_rank = [&](ValueId id) { return id == kNoValue || graph.type(id).has_rank(); };
    if (!std::all_of(node.inputs.begin(), node.inputs.end(), has_rank)) return {};
    // Scale and bias must have as many elements as a row. This is only known here if they have the row's rank.
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
  if (node.op_type == "InstanceNormalization" || node.op_type == "GroupNormalization") return with_shader(group, "normalize", x.dtype, 1);
  if (const std::optional<uint32_t> kind = pool_kind(node)) {
    const DType computed = is_integer(x.dtype) ? DType::float32 : x.dtype;  // 8-bit images of MaxPool are computed in float32
    return with_shader(pool, "pool", computed, *kind);
  }
  return {};
}

}  // namespace treadle::gpu
