// Implements DepthToSpace and SpaceToDepth, which move blocks of pixels into channels and back.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/base/checked.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

int64_t block_size(const Attributes& attributes) {
  const int64_t block = attributes.get_int("blocksize");
  if (block <= 0 || block > INT32_MAX)  // its square must fit into 64 bits
    throw Error(ErrorCode::invalid_argument, fmt::format("blocksize = {} is outside [1, {}]", block, INT32_MAX));
  return block;
}

bool depth_first(const Attributes& attributes) {
  const std::string_view mode = attributes.get_string("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") throw Error(ErrorCode::invalid_argument, fmt::format("mode = \"{}\"; there are DCR and CRD", mode));
  return mode == "DCR";
}

Dim divide(const Dim& extent, int64_t divisor, std::string_view what) {
  if (extent.is_const() && extent.value() % divisor != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} = {} is not a multiple of {}", what, extent.value(), divisor));
  return floor_div(extent, divisor);
}

const SymbolicShape* image(InferContext& c) {
  block_size(c.attributes());
  depth_first(c.attributes());
  if (!c.has_rank(0)) {
    c.set_output(0, c.dtype(0), c.data_dependent_shape("image", 4));
    return nullptr;
  }
  if (c.rank(0) != 4) throw Error(ErrorCode::invalid_argument, fmt::format("the input is of rank {}, not 4", c.rank(0)));
  return &c.shape(0);
}

void infer_depth_to_space(InferContext& c) {
  const SymbolicShape* in = image(c);
  if (!in) return;
  const int64_t block = block_size(c.attributes());
  c.set_output(0, c.dtype(0), {(*in)[0], divide((*in)[1], block * block, "C"), (*in)[2] * block, (*in)[3] * block});
}

void infer_space_to_depth(InferContext& c) {
  const SymbolicShape* in = image(c);
  if (!in) return;
  const int64_t block = block_size(c.attributes());
  c.set_output(0, c.dtype(0), {(*in)[0], (*in)[1] * (block * block), divide((*in)[2], block, "H"), divide((*in)[3], block, "W")});
}

// Both operators are a copy with permuted axes. In the image, the axes are [N, C, h, by, w, bx]; in the tensor with more channels, the
// channels are by·bx·C or C·by·bx. SpaceToDepth copies in the order [N, C, h, by, bx, w], in which it writes.
template <bool kToSpace>
struct Blocks {
  DType dtype;
  kernels::CopyPlan plan;

  static Blocks bind(BindContext& c) {
    const int64_t b = block_size(c.node().attributes);
    const Shape &deep = kToSpace ? c.shape(0) : c.output_shape(0), &wide = kToSpace ? c.output_shape(0) : c.shape(0);
    const int64_t channels = wide[1], h = deep[2], w = deep[3], plane = checked_mul(h, w), tile = checked_mul(b * b, plane);
    const bool dcr = depth_first(c.node().attributes);
    const int64_t channel = dcr ? plane : tile, block = dcr ? channels * plane : plane;
    std::array<int64_t, 6> dims{deep[0], channels, h, b, w, b};
    std::array<int64_t, 6> deep_strides{deep[1] * plane, channel, w, b * block, 1, block};
    std::array<int64_t, 6> wide_strides{checked_mul(channels, tile), tile, b * w * b, w * b, b, 1};
    if (!kToSpace)
      for (std::array<int64_t, 6>* axes : {&dims, &deep_strides, &wide_strides}) std::swap((*axes)[4], (*axes)[5]);
    return {c.dtype(0),
            kToSpace ? kernels::plan_copy(dims, deep_strides, wide_strides) : kernels::plan_copy(dims, wide_strides, deep_strides)};
  }
  void run(RunContext& c) const { move_elements(plan, dtype, c.in<void>(0), 0, c.out<void>(0), 0, c.pool()); }
};

Gradients depth_to_space_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("SpaceToDepth", {g.grad_output(0)}, attributes)};
}

Gradients space_to_depth_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("DepthToSpace", {g.grad_output(0)}, attributes)};
}

}  // namespace

std::vector<OpDef> space_depth_ops() {
  const std::vector<AttributeDef> attributes = {{"blocksize", AttributeDef::Required{}}, {"mode", std::string_view("DCR")}};
  return {
      {.name = "DepthToSpace",
       .since = {1, 11, 13, 28},
       .inputs = {{"input", kAllTensors, "T"}},
       .outputs = {{"output", kAllTensors, "T"}},
       .attributes = attributes,
       .infer = infer_depth_to_space,
       .cost = move_cost,
       .kernels = {kernel<Blocks<true>>()},
       .gradient = depth_to_space_gradient,
       .moves = Moves::anywhere},
      {.name = "SpaceToDepth",
       .since = {1, 13, 28},
       .inputs = {{"input", kAllTensors, "T"}},
       .outputs = {{"output", kAllTensors, "T"}},
       .attributes = attributes,
       .infer = infer_space_to_depth,
       .cost = move_cost,
       .kernels = {kernel<Blocks<false>>()},
       .gradient = space_to_depth_gradient,
       .moves = Moves::anywhere},
  };
}

}  // namespace treadle::ops
