// Implements NhwcGroupNormalization (treadle): InstanceNormalization and GroupNormalization with channels last, X[N, spatial..., C], in
// float32, optionally with a Relu. num_groups = 0 means that each channel is a group.
#include <limits>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/normalization/norm_nhwc.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/nn/normalization.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer(InferContext& c) {
  if (!c.has_rank(0) || c.rank(0) < 3)
    throw Error(ErrorCode::invalid_argument, "the image has a batch, one or two spatial axes, and channels");
  c.set_output(0, c.input(0));
}

struct NhwcGroupNormalization {
  static constexpr uint32_t strided_inputs = 1, strided_outputs = 1;
  kernels::NhwcNorm norm;

  static NhwcGroupNormalization bind(BindContext& c) {
    const Shape& x = c.shape(0);
    NhwcGroupNormalization k;
    kernels::NhwcNorm& norm = k.norm;
    norm.N = x[0], norm.pixels = x.product(1, x.rank() - 1), norm.C = x.back();
    norm.groups = c.get_int("num_groups");
    if (norm.groups == 0) norm.groups = norm.C;
    check_channel_groups(c, norm.C, norm.groups);
    norm.x_pixel = c.input_step(0), norm.y_pixel = c.output_step(0);
    norm.epsilon = c.get_float("epsilon", 1e-5F);
    norm.low = c.get_int("relu") != 0 ? 0 : -std::numeric_limits<float>::infinity();
    if (norm.C > 0) c.request_scratch(kernels::norm_nhwc_scratch_bytes(norm));
    return k;
  }
  void run(RunContext& c) const {
    if (norm.C == 0) return;
    kernels::norm_nhwc(norm, c.in<float>(0), c.in<float>(1), c.in<float>(2), c.out<float>(0), c.scratch<void>(), c.pool());
  }
};

}  // namespace

std::vector<OpDef> nhwc_normalization_ops() {
  constexpr TypeSet kFloat32{DType::float32};
  return {{.name = "NhwcGroupNormalization",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kFloat32}, {"scale", kFloat32}, {"bias", kFloat32}},
           .outputs = {{"Y", kFloat32}},
           .attributes = {{"num_groups", int64_t{0}, at_least(0)}, {"epsilon", 1e-5F}, {"relu", int64_t{0}}},
           .infer = infer,
           .cost = elementwise_cost<8>,
           .alias = {may_reuse(0, 0)},
           .kernels = {kernel<NhwcGroupNormalization>("nhwc", DType::float32)}}};
}

}  // namespace treadle::ops
