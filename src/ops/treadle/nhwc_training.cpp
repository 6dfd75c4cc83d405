// Implements training with channels last, X[N, spatial..., C], in float32. In training graphs, the layout pass creates NhwcConv with
// trained weights, NhwcConvGradInput, NhwcConvGradWeights and NhwcMaxPoolGrad. Weights, their gradients, and shapes that are operands stay
// in ONNX's order.
#include <algorithm>

#include "kernels/conv/conv_gradient_nhwc.h"
#include "kernels/conv/pool_gradient_nhwc.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/nn/window.h"
#include "ops/precision.h"
#include "ops/treadle/nhwc.h"

namespace treadle::ops {
namespace {

using kernels::ConvEpilogue;
using kernels::ConvParams;

constexpr TypeSet kTrainedType{DType::float32};

struct NhwcConvComputed {
  static constexpr uint32_t strided_inputs = 1, strided_outputs = 1;
  ConvParams params;
  ConvEpilogue epilogue;
  kernels::NhwcMethod method;
  int max_threads;
  kernels::Bf16Choice bf16;

  static NhwcConvComputed bind(BindContext& c) {
    NhwcConvComputed k{bind_nhwc_conv(c), bind_epilogue(c), {}, c.max_threads(), bf16_form(c.node().attributes)};
    kernels::ConvChoice choice = choice_of(c.node().attributes);
    choice.packs_in_run = true;
    k.method = kernels::nhwc_method(k.params, choice);
    c.request_scratch(kernels::nhwc_conv_unpacked_scratch_bytes(k.params, k.method, k.max_threads, k.bf16));
    return k;
  }
  void run(RunContext& c) const {
    ConvEpilogue e = epilogue;
    e.bias = c.in<float>(2), e.residual = c.in<float>(3);
    kernels::nhwc_conv_unpacked(params, method, c.in<float>(0), c.in<float>(1), c.out<float>(0), e, c.scratch<void>(), max_threads,
                                c.pool(), bf16);
  }
};

// Infers the shape of the output, which is the contents of input 2, in ONNX's order of axes.
void infer_image_of_shape(InferContext& c) {
  c.set_output_dtype(0, DType::float32);
  const auto shape = c.known(2);
  if (!shape || shape->size() < 3) return;
  SymbolicShape out{(*shape)[0]};
  out.insert(out.end(), shape->begin() + 2, shape->end());
  out.push_back((*shape)[1]);
  c.set_output(0, DType::float32, std::move(out));
}
void infer_weights_of_shape(InferContext& c) {
  c.set_output_dtype(0, DType::float32);
  if (const auto shape = c.known(2)) c.set_output(0, DType::float32, SymbolicShape(shape->begin(), shape->end()));
}

/// Returns the parameters of the convolution. @throws Error(invalid_argument) if the shapes are inconsistent with its attributes
ConvParams bind_gradient(const BindContext& c, const Shape& x, const Shape& w, const Shape& y) {
  if (x.rank() != y.rank() || x.rank() != w.rank() || x.rank() < 3 || x.rank() > 4)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("X {}, W {} and Y {} are of no convolution with channels innermost", to_string(x), to_string(w), to_string(y)));
  ConvParams p;
  p.N = x[0], p.C = x[x.rank() - 1], p.M = w[0], p.group = c.get_int("group", 1);
  if (p.group < 1 || y[0] != x[0] || y[y.rank() - 1] != w[0] || w[1] * p.group != p.C || w[0] % p.group != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("X {}, W {} and Y {} are of no convolution with {} groups", to_string(x), to_string(w), to_string(y), p.group));
  p.window = bind_gradient_window(c.node().attributes, inner(x), inner(y), spatial(w), y, "convolution");
  kernels::check_conv(p);
  return p;
}

struct NhwcConvGradInput {
  ConvParams params;
  kernels::ConvChoice choice;
  int max_threads;
  kernels::Bf16Choice bf16;

  static NhwcConvGradInput bind(BindContext& c) {
    const NhwcConvGradInput k{bind_gradient(c, c.output_shape(0), c.shape(1), c.shape(0)), choice_of(c.node().attributes), c.max_threads(),
                              bf16_form(c.node().attributes)};
    if (!kernels::conv_grad_input_nhwc_fits(k.params))
      throw Error(ErrorCode::not_implemented, "dilations and strides together with pads that the window does not reach");
    c.request_scratch(kernels::conv_grad_input_nhwc_scratch_bytes(k.params, k.choice, k.max_threads, k.bf16));
    return k;
  }
  void run(RunContext& c) const {
    kernels::conv_grad_input_nhwc(params, choice, c.in<float>(0), c.in<float>(1), c.out<float>(0), c.scratch<void>(), max_threads, c.pool(),
                                  bf16);
  }
};

struct NhwcConvGradWeights {
  ConvParams params;
  kernels::ConvChoice choice;
  int max_threads;
  kernels::Bf16Choice bf16;

  static NhwcConvGradWeights bind(BindContext& c) {
    const NhwcConvGradWeights k{bind_gradient(c, c.shape(1), c.output_shape(0), c.shape(0)), choice_of(c.node().attributes),
                                c.max_threads(), bf16_form(c.node().attributes)};
    c.request_scratch(kernels::conv_grad_weights_nhwc_scratch_bytes(k.params, k.choice, k.max_threads, k.bf16));
    return k;
  }
  void run(RunContext& c) const {
    kernels::conv_grad_weights_nhwc(params, choice, c.in<float>(0), c.in<float>(1), c.out<float>(0), c.scratch<void>(), max_threads,
                                    c.pool(), bf16);
  }
};

Cost input_gradient_cost(const ShapeContext& c) {
  const Shape& w = c.shape(1);
  return {2 * static_cast<double>(c.num_elements(0)) * static_cast<double>(w.product(1, w.rank())), c.size_bytes(0) + c.size_bytes(1)};
}
Cost weights_gradient_cost(const ShapeContext& c) {
  const Shape& w = c.output_shape(0);
  return {2 * static_cast<double>(c.num_elements(0)) * static_cast<double>(w.product(1, w.rank())), c.size_bytes(0) + c.size_bytes(1)};
}

void infer_max_pool_gradient(InferContext& c) { c.set_output(0, c.input(1)); }

struct NhwcMaxPoolGrad {
  kernels::Window window;
  int64_t N, C;

  static NhwcMaxPoolGrad bind(BindContext& c) {
    const Shape &x = c.shape(1), &y = c.shape(0);
    if (x.rank() != y.rank() || x.rank() < 3 || x.rank() > 4 || x[0] != y[0] || x.back() != y.back())
      throw Error(ErrorCode::invalid_argument, fmt::format("the gradient {} is of no pool over {}", to_string(y), to_string(x)));
    return {bind_gradient_window(c.node().attributes, inner(x), inner(y), c.get_ints("kernel_shape"), y, "pool"), x[0], x.back()};
  }
  void run(RunContext& c) const {
    kernels::max_pool_gradient_nhwc(window, N, C, c.in<float>(0), c.in<float>(1), c.out<float>(0), c.pool());
  }
};

}  // namespace

KernelDef nhwc_conv_of_computed_weights() { return kernel<NhwcConvComputed>("nhwc, packed in the run", DType::float32); }

std::vector<OpDef> nhwc_training_ops() {
  const std::vector<AttributeDef> convolution =
      convolution_attributes({{"max_weight_expansion", 0.0F}, {kPrecision, std::string_view("")}, {"rates"}});
  constexpr TypeSet kInt64{DType::int64};
  return {{.name = "NhwcConvGradInput",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTrainedType}, {"W", kTrainedType}, {"shape", kInt64}},
           .outputs = {{"dX", kTrainedType}},
           .attributes = convolution,
           .infer = infer_image_of_shape,
           .cost = input_gradient_cost,
           .kernels = {kernel<NhwcConvGradInput>("nhwc", DType::float32)},
           .value_inputs = {2}},
          {.name = "NhwcConvGradWeights",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTrainedType}, {"X", kTrainedType}, {"shape", kInt64}},
           .outputs = {{"dW", kTrainedType}},
           .attributes = convolution,
           .infer = infer_weights_of_shape,
           .cost = weights_gradient_cost,
           .kernels = {kernel<NhwcConvGradWeights>("nhwc", DType::float32)},
           .value_inputs = {2}},
          {.name = "NhwcMaxPoolGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kTrainedType}, {"X", kTrainedType}},
           .outputs = {{"dX", kTrainedType}},
           .attributes = window_attributes({{"ceil_mode", int64_t{0}}}),
           .infer = infer_max_pool_gradient,
           .cost = stream_cost,
           .kernels = {kernel<NhwcMaxPoolGrad>("nhwc", DType::float32)}}};
}

}  // namespace treadle::ops
