// Implements pools and per-channel scaling of the treadle domain with channels last, X[N, spatial..., C], in float32. The layout pass
// replaces MaxPool, AveragePool, GlobalAveragePool and BatchNormalization by them.
#include <limits>

#include "kernels/conv/pool_nhwc.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/nn/window.h"
#include "ops/treadle/nhwc.h"
#include "ops/treadle/nhwc_functions.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kPoolType{DType::float32};

void infer_nhwc_pool(InferContext& c) {
  check_image_rank(c, 0);
  const std::vector<int64_t>& kernel = c.get_ints("kernel_shape");
  SymbolicShape out = infer_window(c.attributes(), inner(c.shape(0)), {kernel.begin(), kernel.end()});
  out.insert(out.begin(), c.shape(0).front());
  out.push_back(c.shape(0).back());
  c.set_output(0, DType::float32, std::move(out));
}

void infer_scaled(InferContext& c) { c.set_output(0, c.input(0)); }

template <kernels::NhwcPool kKind>
struct NhwcPool {
  static constexpr uint32_t strided_inputs = 1, strided_outputs = 1;
  kernels::Window window;
  int64_t N, C;
  bool include_pad;
  kernels::PixelSteps steps;

  static NhwcPool bind(BindContext& c) {
    const Shape& x = c.shape(0);
    return {bind_window(c.node().attributes, inner(x), inner(c.output_shape(0)), c.get_ints("kernel_shape")),
            x[0],
            x[x.rank() - 1],
            c.get_int("count_include_pad") != 0,
            {c.input_step(0), c.output_step(0)}};
  }
  void run(RunContext& c) const { kernels::pool_nhwc(kKind, window, N, C, include_pad, steps, c.in<float>(0), c.out<float>(0), c.pool()); }
};

void infer_mean(InferContext& c) {
  check_image_rank(c, 0);
  const SymbolicShape& x = c.shape(0);
  SymbolicShape out{x.front()};
  if (c.get_int("keepdims", 1) != 0) out.insert(out.end(), x.size() - 2, Dim(1));
  out.push_back(x.back());
  c.set_output(0, DType::float32, std::move(out));
}

struct NhwcGlobalAveragePool {
  static constexpr uint32_t strided_inputs = 1;
  int64_t N, pixels, line, C, step;

  static NhwcGlobalAveragePool bind(BindContext& c) {
    const Shape& x = c.shape(0);
    const NhwcGlobalAveragePool k{x[0], x.product(1, x.rank() - 1), std::max<int64_t>(1, x[x.rank() - 2]), x[x.rank() - 1],
                                  c.input_step(0)};
    c.request_scratch(kernels::mean_nhwc_scratch_bytes(k.N, k.pixels, k.line, k.C));
    return k;
  }
  void run(RunContext& c) const {
    kernels::mean_nhwc(N, pixels, line, C, step, c.in<float>(0), c.out<float>(0), c.scratch<void>(), c.pool());
  }
};

// Computes y = x * scale + shift, with one scale and one shift per channel, followed by a Relu if `relu` is set.
struct NhwcAffine {
  static constexpr uint32_t strided_inputs = 1, strided_outputs = 1;
  int64_t rows, C;
  kernels::PixelSteps steps;
  float low;

  static NhwcAffine bind(BindContext& c) {
    const Shape& x = c.shape(0);
    const int64_t channels = x[x.rank() - 1];
    check_equal(c.num_elements(1), channels, "scale and channels");
    check_equal(c.num_elements(2), channels, "shift and channels");
    const float low = c.get_int("relu") != 0 ? 0 : -std::numeric_limits<float>::infinity();
    return {x.product(0, x.rank() - 1), channels, {c.input_step(0), c.output_step(0)}, low};
  }
  void run(RunContext& c) const {
    kernels::affine_nhwc(rows, C, steps, c.in<float>(0), c.in<float>(1), c.in<float>(2), low, c.out<float>(0), c.pool());
  }
};

}  // namespace

std::vector<OpDef> nhwc_pool_ops() {
  return {{.name = "NhwcMaxPool",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kPoolType}},
           .outputs = {{"Y", kPoolType}},
           .attributes = window_attributes({{"ceil_mode", int64_t{0}}}),
           .infer = infer_nhwc_pool,
           .cost = stream_cost,
           .kernels = {kernel<NhwcPool<kernels::NhwcPool::max>>("nhwc", DType::float32)},
           .write_function = write_nhwc_max_pool},
          {.name = "NhwcAveragePool",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kPoolType}},
           .outputs = {{"Y", kPoolType}},
           .attributes = window_attributes({{"ceil_mode", int64_t{0}}, {"count_include_pad", int64_t{0}}}),
           .infer = infer_nhwc_pool,
           .cost = stream_cost,
           .kernels = {kernel<NhwcPool<kernels::NhwcPool::average>>("nhwc", DType::float32)},
           .write_function = write_nhwc_average_pool,
           .function_opset = average_pool_opset},
          {.name = "NhwcGlobalAveragePool",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kPoolType}},
           .outputs = {{"Y", kPoolType}},
           .attributes = {{"keepdims", int64_t{1}}},
           .infer = infer_mean,
           .cost = stream_cost,
           .kernels = {kernel<NhwcGlobalAveragePool>("nhwc", DType::float32)},
           .write_function = write_nhwc_global_average_pool,
           .function_opset = reduce_mean_opset},
          {.name = "NhwcAffine",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kPoolType, "", Presence::required, of_ranks(1)}, {"scale", kPoolType}, {"shift", kPoolType}},
           .outputs = {{"Y", kPoolType}},
           .attributes = {{"relu", int64_t{0}}},
           .infer = infer_scaled,
           .cost = stream_cost,
           .alias = {may_reuse(0, 0)},
           .kernels = {kernel<NhwcAffine>("nhwc", DType::float32)},
           .write_function = write_nhwc_affine}};
}

}  // namespace treadle::ops
