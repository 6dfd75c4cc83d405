// Computes those gradients that are operators of their own: of operators on rows, convolutions, pools, losses, and operators that move
// elements. All other gradients are graphs of ordinary operators.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "graph/internal_attributes.h"
#include "kernels/conv/conv.h"
#include "kernels/reduce/reduce.h"
#include "ops/math/loss.h"
#include "ops/nn/convolution.h"
#include "ops/nn/normalization.h"
#include "ops/nn/window.h"
#include "ops/tensor/gather.h"
#include "ops/tensor/slice_gradient.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

struct GradientState final : FaultState {
  const vulkan::Shader* shaders[4] = {};  // shaders of the node's passes, in the order of execution
};
const vulkan::Shader& pass(RunContext& c, size_t index) { return *c.packed<GradientState>().shaders[index]; }

// Gradients of operators on rows: softmax and normalizations.

enum RowPass : uint32_t { softmax_rows, statistics, columns, normalization };  // numbers of the passes in row_gradient.comp

struct RowGradient : ops::GradientRows {
  bool is_softmax = false, centered = false, has_dscale = false, has_dbias = false;
  float epsilon = 0;

  static RowGradient bind(BindContext& c) {
    const bool is_softmax = c.node().op_type == "SoftmaxGrad";
    RowGradient k{is_softmax ? of_softmax(c) : of_normalization(c), is_softmax, c.node().op_type == "LayerNormalizationGrad"};
    count32(c.num_elements(0));
    if (is_softmax) return k;
    k.epsilon = c.get_float("epsilon", 1e-5F);
    k.has_dscale = c.has_output(1), k.has_dbias = c.has_output(2);
    c.request_scratch(static_cast<size_t>(k.rows) * 4 * sizeof(float));
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0));
    for (const int input : {is_softmax ? 1 : 0, is_softmax ? 0 : 1}) push.pointer(c.in<void>(input));
    push.pointer(is_softmax ? nullptr : c.in<void>(2)).pointer(c.out<void>(1)).pointer(c.out<void>(2)).pointer(c.scratch<void>());
    push_sizes(push, {rows, length, has_dscale, has_dbias, centered});
    push.word(epsilon);
    stream().dispatch(pass(c, 0), push.bytes(), groups_for(rows));
    if (is_softmax) return;
    if (has_dscale || has_dbias) stream().dispatch(pass(c, 1), push.bytes(), groups_over(count32(length)));
    stream().dispatch(pass(c, 2), push.bytes(), groups_over(count32(rows * length)));
  }
};

/// Computes BatchNormalization with the statistics of the batch, and its gradient.
struct BatchStatistics : ops::BatchPlanes {
  bool is_gradient = false, has_mean = false, has_variance = false;
  float epsilon = 0, momentum = 0, unbiased = 1;

  static BatchStatistics bind(BindContext& c) {
    const bool is_gradient = c.node().op_type == "BatchNormalizationGrad";
    BatchStatistics k{is_gradient ? bind_gradient(c) : BatchPlanes::bind(c), is_gradient, c.has_output(1), c.has_output(2)};
    count32(c.num_elements(0));
    k.epsilon = c.get_float("epsilon", 1e-5F);
    if (is_gradient) return k;
    k.momentum = c.get_float("momentum", 0.9F);
    const auto count = static_cast<float>(k.N * k.inner);
    if (c.get_int(kUnbiasedVariance) != 0) k.unbiased = count / (count - 1);
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(is_gradient ? 1 : 0)).pointer(c.in<void>(is_gradient ? 2 : 1));
    push.pointer(c.in<void>(is_gradient ? 0 : 2));
    for (const int input : {3, 4}) push.pointer(is_gradient ? nullptr : c.in<void>(input));
    for (const int output : {1, 2}) push.pointer(c.out<void>(output));
    push_sizes(push, {N, channels, inner, has_mean, has_variance});
    push.word(epsilon).word(momentum).word(unbiased);
    stream().dispatch(pass(c, 0), push.bytes(), groups_for(channels));
  }
};

// Gradients of convolutions.

/// The arguments of the shader convolution_transposed.comp: the gradient of the image is the transposed convolution of dY.
struct ConvolutionInputGradient {
  kernels::ConvParams params;

  static ConvolutionInputGradient bind(BindContext& c) {
    for (const int i : {0, 1}) count32(c.num_elements(i));
    count32(c.output_shape(0).num_elements());
    return {ops::bind_conv_gradient(c, c.output_shape(0), c.shape(1), c.shape(0))};
  }
  void run(RunContext& c) const {
    const kernels::Window& w = params.window;
    const int64_t count = params.N * params.C * w.in_size();
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).pointer(nullptr).word(uint32_t{0});
    push_sizes(push, {count, params.M / params.group, params.C / params.group, params.group});
    push_plane(push, w);
    stream().dispatch(pass(c, 0), push.bytes(), groups_over(count32(count)));
  }
};

/// The arguments of the shader weights_gradient.comp. If there are few weights, the sums are divided into parts that different work groups
/// compute, so that the device has enough work groups.
struct ConvolutionWeightsGradient {
  kernels::ConvParams params;
  int64_t part, num_parts;

  static ConvolutionWeightsGradient bind(BindContext& c) {
    constexpr int64_t kTileExtent = 64, kWantedGroups = 256, kLeastTerms = 512;
    for (const int i : {0, 1}) count32(c.num_elements(i));
    ConvolutionWeightsGradient k{ops::bind_conv_gradient(c, c.shape(1), c.output_shape(0), c.shape(0)), 0, 0};
    const kernels::ConvParams& p = k.params;
    const int64_t rows = p.M / p.group, columns = p.C / p.group * p.window.kernel_size(), terms = p.N * p.window.out_size();
    const int64_t groups = ((rows + kTileExtent - 1) / kTileExtent) * ((columns + kTileExtent - 1) / kTileExtent) * p.group;
    const int64_t wanted = std::clamp<int64_t>(kWantedGroups / std::max<int64_t>(groups, 1), 1, std::max<int64_t>(terms / kLeastTerms, 1));
    k.part = std::max<int64_t>((terms / wanted + 15) / 16 * 16, 16);
    k.num_parts = std::max<int64_t>((terms + k.part - 1) / k.part, 1);
    if (k.num_parts > 1) c.request_scratch(static_cast<size_t>(count32(k.num_parts * k.num_weights())) * sizeof(float));
    return k;
  }
  void run(RunContext& c) const {
    const int64_t rows = params.M / params.group, columns = params.C / params.group * params.window.kernel_size();
    Push push;
    push.pointer(num_parts > 1 ? c.scratch<void>() : c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1));
    push_sizes(push, {rows, columns, params.N * params.window.out_size(), params.group, part});
    push_plane(push, params.window);
    std::array<uint32_t, 3> groups = groups_for(((rows + 63) / 64) * ((columns + 63) / 64));
    groups[2] = count32(params.group * num_parts);
    stream().dispatch(pass(c, 0), push.bytes(), groups);
    if (num_parts > 1) add_parts(c);
  }

 private:
  int64_t num_weights() const { return params.M * (params.C / params.group) * params.window.kernel_size(); }
  void add_parts(RunContext& c) const {  // sums the parts, as a reduction along the axis of the parts
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.scratch<void>());
    push_sizes(push, {num_weights(), num_parts, 0});
    push_sizes(push, {1, 1, 1, num_weights(), 0, 0, 0, 1});
    push_sizes(push, {1, 1, 1, num_parts, 0, 0, 0, num_weights()});
    stream().dispatch(pass(c, 1), push.bytes(), groups_over(count32(num_weights())));
  }
};

// Gradients of pools, and the MaxPool of training graphs.

struct PoolGradient {
  kernels::Window window;
  int64_t count;  // number of shader invocations
  bool of_maxima;

  static PoolGradient bind(BindContext& c) {
    const Shape &x = c.output_shape(0), &y = c.shape(0);
    const bool of_maxima = c.node().op_type == "MaxPoolGrad";
    count32(x.num_elements());
    PoolGradient k{of_maxima ? kernels::Window{} : ops::bind_average_pool_gradient(c), x.num_elements(), of_maxima};
    if (of_maxima) {
      ops::check_max_pool_gradient(c);
      k.count = x[0] * x[1];
      for (int axis = 2; axis < x.rank(); ++axis) {
        k.window.in[axis + 3 - x.rank()] = x[axis];
        k.window.out[axis + 3 - x.rank()] = y[axis];
      }
    }
    return k;
  }
  void run(RunContext& c) const {
    vulkan::VulkanStream::FaultSite site;
    if (of_maxima) site = c.packed<GradientState>().fault("an index is outside of its plane");
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(of_maxima ? c.in<void>(1) : nullptr);
    push.fault(site).word(site.number).word(count32(count));
    push_plane(push, window);
    for (const int axis : {1, 2}) push.word(signed32(window.in[axis] + window.pad_end[axis]));
    stream().dispatch(pass(c, 0), push.bytes(), groups_over(count32(count)));
  }
};

/// A MaxPool that also outputs the positions of the maxima, for its gradient.
struct PoolWithIndices {
  kernels::Window window;
  int64_t count;

  static PoolWithIndices bind(BindContext& c) {
    count32(c.num_elements(0));
    return {ops::bind_pool(c), c.output_shape(0).num_elements()};
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.out<void>(1)).word(count32(count));
    push_plane(push, window);
    stream().dispatch(pass(c, 0), push.bytes(), groups_over(count32(count)));
  }
};

// NegativeLogLikelihoodLoss and its gradient.

enum LossPass : uint32_t { whole_loss, each_loss, sum_of_weights, loss_gradient };  // numbers of the passes in loss.comp

struct Loss : ops::LossPlan {
  bool is_gradient;

  static Loss bind(BindContext& c) {
    const bool is_gradient = c.node().op_type == "NegativeLogLikelihoodLossGrad";
    Loss k{is_gradient ? bind_gradient(c) : LossPlan::bind(c), is_gradient};
    if (k.ignore_index != static_cast<int32_t>(k.ignore_index)) k.ignores = false;  // no class has it, so labels with it are errors
    count32((is_gradient ? c.output_shape(0) : c.shape(0)).num_elements());
    if (is_gradient && k.reduction == Reduction::mean) c.request_scratch(sizeof(float));
    return k;
  }
  void run(RunContext& c) const {
    const bool each = reduction == Reduction::none, mean = reduction == Reduction::mean;
    const auto site = c.packed<GradientState>().fault(fmt::format("a target is outside [0, {})", classes));
    const auto dispatch = [&](size_t index, void* y, std::array<uint32_t, 3> groups) {
      Push push;
      push.pointer(y).pointer(c.in<void>(0)).pointer(c.in<void>(1)).pointer(weighted ? c.in<void>(is_gradient ? 3 : 2) : nullptr);
      push.pointer(is_gradient ? c.scratch<void>() : nullptr).fault(site);
      push_sizes(push, {site.number, wide_target ? 2 : 1, num_targets(), classes, positions, weighted, ignores, ignore_index, mean, each});
      stream().dispatch(pass(c, index), push.bytes(), groups);
    };
    if (!is_gradient) return dispatch(each ? 1 : 0, c.out<void>(0), each ? groups_over(count32(num_targets())) : groups_for(1));
    if (mean) dispatch(0, c.scratch<void>(), groups_for(1));
    dispatch(1, c.out<void>(0), groups_over(count32(num_targets() * classes)));
  }
};

// Gradients of operators that move elements.

struct GatherGradient : ops::GatherExtents {
  bool wide = false;

  static GatherGradient bind(BindContext& c) {
    count32(c.output_shape(0).num_elements()), count32(c.num_elements(0));
    return {bind_gradient(c), c.dtype(1) == DType::int64};
  }
  void run(RunContext& c) const {
    const auto site = c.packed<GradientState>().fault(fmt::format("an index is outside of the axis, which has {} elements", extent));
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).fault(site);
    push_sizes(push, {site.number, wide ? 2 : 1, outer, extent, inner, num_indices});
    stream().dispatch(pass(c, 0), push.bytes(), groups_for(outer * extent));
  }
};

constexpr int kMaxSlicedRank = 4;

struct SliceGradient {
  int64_t count;
  int32_t extents[kMaxSlicedRank], starts[kMaxSlicedRank], steps[kMaxSlicedRank], taken[kMaxSlicedRank];

  static SliceGradient bind(BindContext& c) {
    const ops::SlicedPlaces places = ops::SlicedPlaces::of(c);
    const Shape &x = c.output_shape(0), &y = c.shape(0);
    SliceGradient k{count32(x.num_elements()), {}, {}, {}, {}};
    const int missing = kMaxSlicedRank - x.rank();
    for (int i = 0; i < kMaxSlicedRank; ++i) {
      const int axis = i - missing;
      k.extents[i] = axis < 0 ? 1 : static_cast<int32_t>(x[axis]);
      k.taken[i] = axis < 0 ? 1 : static_cast<int32_t>(y[axis]);
      k.starts[i] = axis < 0 ? 0 : static_cast<int32_t>(places.starts[axis]);
      k.steps[i] = axis < 0 || y[axis] < 2 ? 1 : static_cast<int32_t>(places.strides[axis]);
    }
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).word(count32(count));
    for (const auto* values : {&extents, &starts, &steps, &taken})
      for (const int32_t value : *values) push.word(value);
    stream().dispatch(pass(c, 0), push.bytes(), groups_over(count32(count)));
  }
};

struct Pass {
  std::string_view file;
  uint32_t constant = 0;
};

DeviceKernel with_passes(const KernelDef& kernel, const Node& node, std::initializer_list<Pass> passes) {
  auto state = std::make_shared<GradientState>();
  size_t count = 0;
  for (const Pass& pass : passes) {
    const uint32_t constants[] = {pass.constant};
    if (!(state->shaders[count++] = find_shader(std::string(pass.file), DType::float32, constants))) return {};
  }
  state->node = describe(node);
  return {&kernel, std::move(state)};
}

/// Returns true if all float operands and results are float32.
bool is_float32(const Graph& graph, const Node& node) {
  const auto fits = [&](ValueId id) { return id == kNoValue || !is_float(graph.type(id).dtype) || graph.type(id).dtype == DType::float32; };
  return std::all_of(node.inputs.begin(), node.inputs.end(), fits) && std::all_of(node.outputs.begin(), node.outputs.end(), fits);
}

DeviceKernel find_loss(const Node& node) {
  static const KernelDef loss = kernel<Loss>("gpu");
  const std::string_view reduction = node.attributes.get_string("reduction", "mean");
  if (node.op_type == "NegativeLogLikelihoodLoss") return with_passes(loss, node, {{"loss", whole_loss}, {"loss", each_loss}});
  if (node.op_type != "NegativeLogLikelihoodLossGrad" || (reduction != "mean" && reduction != "sum" && reduction != "none")) return {};
  return with_passes(loss, node, {{"loss", sum_of_weights}, {"loss", loss_gradient}});
}

uint32_t pool_gradient_kind(const Node& node) {  // returns the gradient's number in pool_gradient.comp
  if (node.op_type == "MaxPoolGrad") return 0;
  if (node.attributes.get_int("sums", 0) != 0) return 3;
  return node.attributes.get_int("count_include_pad", 0) != 0 ? 2 : 1;
}

}  // namespace

DeviceKernel find_gradient(const Graph& graph, const Node& node) {
  static const KernelDef rows = kernel<RowGradient>("gpu"), batch = kernel<BatchStatistics>("gpu"),
                         image = kernel<ConvolutionInputGradient>("gpu"), weights = kernel<ConvolutionWeightsGradient>("gpu"),
                         pool = kernel<PoolGradient>("gpu"), indices = kernel<PoolWithIndices>("gpu"),
                         gather = kernel<GatherGradient>("gpu"), slice = kernel<SliceGradient>("gpu");
  if (!is_float32(graph, node)) return {};
  const auto rank = [&](ValueId id) { return graph.type(id).shape->size(); };
  if (node.domain.empty()) {
    if (node.op_type == "MaxPool" && node.has_output(1) && rank(node.inputs[0]) <= 4 && node.attributes.get_int("storage_order", 0) == 0)
      return with_passes(indices, node, {{"pool_indices"}});
    if (node.op_type == "BatchNormalization" && node.attributes.get_int("training_mode", 0) != 0)
      return with_passes(batch, node, {{"batch_statistics", 0}});
    return find_loss(node);
  }
  if (node.domain != "treadle" || !node.has_output(0)) return {};
  if (node.op_type == "SoftmaxGrad")
    return rank(node.inputs[0]) == 0 ? DeviceKernel() : with_passes(rows, node, {{"row_gradient", softmax_rows}});
  if (node.op_type == "LayerNormalizationGrad" || node.op_type == "RMSNormalizationGrad")
    return with_passes(rows, node, {{"row_gradient", statistics}, {"row_gradient", columns}, {"row_gradient", normalization}});
  if (node.op_type == "BatchNormalizationGrad") return with_passes(batch, node, {{"batch_statistics", 1}});
  const bool is_flat = rank(node.inputs[0]) <= 4;  // the shaders have no depth axis
  if (node.op_type == "ConvGradInput" && is_flat) return with_passes(image, node, {{"convolution_transposed"}});
  if (node.op_type == "ConvGradWeights" && is_flat)
    return with_passes(weights, node, {{"weights_gradient"}, {"reduce", static_cast<uint32_t>(kernels::Reduce::sum)}});
  if ((node.op_type == "MaxPoolGrad" || node.op_type == "AveragePoolGrad") && is_flat)
    return with_passes(pool, node, {{"pool_gradient", pool_gradient_kind(node)}});
  if (node.op_type == "GatherGrad") return with_passes(gather, node, {{"gather_gradient"}});
  if (node.op_type == "SliceGrad" && rank(node.inputs[0]) <= kMaxSlicedRank) return with_passes(slice, node, {{"slice_gradient"}});
  return find_loss(node);
}

}  // namespace treadle::gpu
