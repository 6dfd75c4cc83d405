// Computes operators that sample images or assemble them: GridSample, AffineGrid, RoiAlign, MaxRoiPool, DeformConv, Col2Im.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/nn/col2im.h"
#include "ops/nn/deform_conv.h"
#include "ops/object_detection/regions.h"
#include "ops/tensor/grid_sample.h"

namespace treadle::gpu {
namespace {

struct SamplingState final : FaultState {
  const vulkan::Shader* shader = nullptr;
  DType computed = DType::float32;
};
DType computed_in(const BindContext& c) { return c.packed<SamplingState>().computed; }

struct GridSample {
  kernels::GridSampleParams params;
  ConvertedOperand x, grid, y;

  static GridSample bind(BindContext& c) {
    GridSample k{ops::bind_grid_sample(c), {}, {}, {}};
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), computed_in(c), c.num_elements(0));
    k.grid = ConvertedOperand::reserve(layout, c.dtype(1), computed_in(c), c.num_elements(1));
    k.y = ConvertedOperand::reserve(layout, c.dtype(0), computed_in(c), c.output_shape(0).num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(y.result(c, 0)).pointer(x.read(c, 0)).pointer(grid.read(c, 1));
    push_sizes(push, {y.count, params.C, params.points, params.rank});
    for (int i = params.rank; i < 3; ++i) push.word(int32_t{1});
    for (int i = 0; i < params.rank; ++i) push.word(static_cast<int32_t>(params.in[i]));
    stream().dispatch(*c.packed<SamplingState>().shader, push.bytes(), groups_over(count32(y.count)));
    y.store(c, 0);
  }
};

struct AffineGrid : ops::AffineGridPlan {
  ConvertedOperand theta, grid;

  static AffineGrid bind(BindContext& c) {
    AffineGrid k{AffineGridPlan::bind(c), {}, {}};
    ops::ScratchLayout layout;
    k.theta = ConvertedOperand::reserve(layout, c.dtype(0), computed_in(c), c.num_elements(0));
    k.grid = ConvertedOperand::reserve(layout, c.dtype(0), computed_in(c), c.output_shape(0).num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(grid.result(c, 0)).pointer(theta.read(c, 0));
    push_sizes(push, {grid.count, extents[0] * extents[1] * extents[2], rank, align_corners, extents[0], extents[1], extents[2]});
    stream().dispatch(*c.packed<SamplingState>().shader, push.bytes(), groups_over(count32(grid.count)));
    grid.store(c, 0);
  }
};

/// RoiAlign and MaxRoiPool.
struct Regions {
  ops::RegionPlan plan;
  ConvertedOperand x, regions, y;

  static Regions bind(BindContext& c) {
    const Shape& out = c.output_shape(0);
    Regions k{c.node().op_type == "RoiAlign" ? ops::RegionPlan::of_align(c, out) : ops::RegionPlan::of_max_pool(c, out), {}, {}, {}};
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), computed_in(c), c.num_elements(0));
    k.regions = ConvertedOperand::reserve(layout, c.dtype(1), computed_in(c), c.num_elements(1));
    k.y = ConvertedOperand::reserve(layout, c.dtype(0), computed_in(c), out.num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<SamplingState>();
    const auto no_image = state.fault(fmt::format("a region lies in no image of {}", plan.batch));
    const auto too_large = state.fault("a part of a region spans more than 100,000 elements");
    Push push;
    push.pointer(y.result(c, 0)).pointer(x.read(c, 0)).pointer(regions.read(c, 1)).pointer(c.in<void>(2));
    push.fault(no_image).word(no_image.number).word(too_large.number);
    push_sizes(push, {y.count, plan.batch, plan.channels, plan.height, plan.width, plan.out_height, plan.out_width,
                      std::max<int64_t>(plan.sampling_ratio, 0), plan.half_pixel});
    push.word(plan.scale);
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(y.count)));
    y.store(c, 0);
  }
};

struct DeformConv {
  kernels::DeformParams params;
  ConvertedOperand operands[5], y;  // X, W, offset, B, mask

  static DeformConv bind(BindContext& c) {
    DeformConv k{ops::bind_deform_conv(c), {}, {}};
    ops::ScratchLayout layout;
    for (int i = 0; i < 5; ++i)
      if (c.has_input(i)) k.operands[i] = ConvertedOperand::reserve(layout, c.dtype(i), computed_in(c), c.num_elements(i));
    k.y = ConvertedOperand::reserve(layout, c.dtype(0), computed_in(c), c.output_shape(0).num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const kernels::ConvParams& conv = params.conv;
    Push push;
    push.pointer(y.result(c, 0));
    for (int i = 0; i < 5; ++i) push.pointer(operands[i].read(c, i));
    push_sizes(push, {c.in<void>(3) != nullptr, c.in<void>(4) != nullptr, y.count, conv.C, conv.M, conv.group, params.offset_group});
    push_plane(push, conv.window);
    stream().dispatch(*c.packed<SamplingState>().shader, push.bytes(), groups_over(count32(y.count)));
    y.store(c, 0);
  }
};

struct Col2Im {
  int64_t extents[6][3];  // six arrays with a number per axis, in the order of the push constants
  ConvertedOperand x, y;

  static Col2Im bind(BindContext& c) {
    const ops::Col2ImPlan plan = ops::Col2ImPlan::bind(c, c.shape(0), c.output_shape(0));
    if (plan.rank > 3) throw Error(ErrorCode::not_implemented, "Col2Im over more than three axes, on the GPU");
    Col2Im k{};
    const int64_t* const given[] = {plan.image, plan.grid, plan.block, plan.strides, plan.dilations, plan.pads};
    for (size_t i = 0; i < 6; ++i) {
      std::fill_n(k.extents[i], 3, i == 5 ? 0 : 1);
      std::copy_n(given[i], plan.rank, k.extents[i] + 3 - plan.rank);
    }
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), computed_in(c), c.num_elements(0));
    k.y = ConvertedOperand::reserve(layout, c.dtype(0), computed_in(c), c.output_shape(0).num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(y.result(c, 0)).pointer(x.read(c, 0)).word(count32(y.count));
    push_window(push, {&extents[0], &extents[1], &extents[2], &extents[3], &extents[4], &extents[5]});
    stream().dispatch(*c.packed<SamplingState>().shader, push.bytes(), groups_over(count32(y.count)));
    y.store(c, 0);
  }
};

DeviceKernel sampling_kernel(const KernelDef& kernel, std::shared_ptr<SamplingState> state, const std::string& file,
                             std::initializer_list<uint32_t> constants) {
  state->shader = find_shader(file, state->computed, std::span(constants.begin(), constants.size()));
  return state->shader ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

}  // namespace

DeviceKernel find_sampling(const Graph& graph, const Node& node) {
  static const KernelDef grid_sample = kernel<GridSample>("gpu"), affine_grid = kernel<AffineGrid>("gpu"), regions = kernel<Regions>("gpu"),
                         deform_conv = kernel<DeformConv>("gpu"), col2im = kernel<Col2Im>("gpu");
  if (!node.domain.empty()) return {};
  const Type& x = graph.type(node.inputs[0]);
  auto state = std::make_shared<SamplingState>();
  state->computed = wide_type(x.dtype);
  state->node = describe(node);
  const Attributes& attributes = node.attributes;
  if (node.op_type == "GridSample") {
    const std::string_view mode = attributes.get_string("mode", "linear"), padding = attributes.get_string("padding_mode", "zeros");
    if (x.shape->size() > 5) return {};
    using kernels::GridMode, kernels::GridPadding;
    const GridMode by = mode == "nearest" ? GridMode::nearest : mode == "cubic" ? GridMode::cubic : GridMode::linear;
    const GridPadding beyond = padding == "border"       ? GridPadding::border
                               : padding == "reflection" ? GridPadding::reflection
                                                         : GridPadding::zeros;
    return sampling_kernel(grid_sample, std::move(state), "grid_sample",
                           {static_cast<uint32_t>(by), static_cast<uint32_t>(beyond), uint32_t{attributes.get_int("align_corners") != 0}});
  }
  if (node.op_type == "AffineGrid") return sampling_kernel(affine_grid, std::move(state), "affine_grid", {});
  if (node.op_type == "RoiAlign")
    return sampling_kernel(regions, std::move(state), "regions", {uint32_t{attributes.get_string("mode", "avg") == "max"}});
  if (node.op_type == "MaxRoiPool") return sampling_kernel(regions, std::move(state), "regions", {2});
  if (node.op_type == "DeformConv" && x.shape->size() == 4) return sampling_kernel(deform_conv, std::move(state), "deform_conv", {});
  if (node.op_type == "Col2Im" && graph.type(node.outputs[0]).shape->size() <= 5) {
    if (is_integer(x.dtype)) state->computed = bits_of(x.dtype) == 64 ? DType::int64 : DType::int32;  // sums have the same bits
    return sampling_kernel(col2im, std::move(state), "col2im", {});
  }
  return {};
}

}  // namespace treadle::gpu
