// Implements DeformConv with two spatial axes.
#include "ops/nn/deform_conv.h"

#include <fmt/format.h>

#include <tuple>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/nn/convolution.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr ConvolutionInputs kInputs{0, 1, 3};

void infer_deform_conv(InferContext& c) { infer_convolution(c, kInputs, c.dtype(0)); }

Cost deform_conv_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  const Shape& w = c.shape(1);
  return {2 * outputs * static_cast<double>(w.product(1, w.rank())), c.size_bytes(0) + c.size_bytes(1) + c.size_bytes(2)};
}

kernels::DeformParams bind_deform(const BindContext& c, const kernels::ConvParams& conv) {
  const kernels::DeformParams params{conv, c.get_int("offset_group", 1)};
  if (params.offset_group < 1 || conv.C % params.offset_group != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} channels cannot be split into {} groups of offsets", conv.C, params.offset_group));
  const int64_t places = conv.N * params.offset_group * conv.window.kernel_size() * conv.window.out_size();
  const int64_t taps = params.offset_group * conv.window.kernel_size();
  for (const auto& [input, of_tap, name] : {std::tuple{2, 2, "offset"}, std::tuple{4, 1, "mask"}}) {
    if (!c.has_input(input)) continue;
    const Shape& shape = c.shape(input);
    check_equal(shape.rank(), c.shape(0).rank(), fmt::format("axes of {} and of X", name));
    check_equal(shape[1], of_tap * taps, fmt::format("channels of {}, and taps in groups of offsets", name));
    check_equal(c.num_elements(input), of_tap * places, fmt::format("elements of {}", name));
  }
  return params;
}

void check_image_rank(const BindContext& c) {
  if (c.shape(0).rank() != 4)
    throw Error(ErrorCode::not_implemented, fmt::format("X is of rank {}; there is an implementation for rank 4", c.shape(0).rank()));
}

}  // namespace

kernels::DeformParams bind_deform_conv(const BindContext& c) {
  check_image_rank(c);
  return bind_deform(c, bind_convolution(c, kInputs));
}

namespace {

template <typename T>
struct DeformConv {
  using C = compute_type_t<T>;
  kernels::DeformParams params;
  Wide x, w, offset, bias, mask, y;
  int64_t work;
  int max_threads;

  static DeformConv bind(BindContext& c) {
    DeformConv k{};
    k.params = bind_deform_conv(c);
    k.max_threads = c.max_threads();
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, c.num_elements(0));
    k.w = reserve_wide<T>(layout, c.num_elements(1));
    k.offset = reserve_wide<T>(layout, c.num_elements(2));
    if (c.has_input(3)) k.bias = reserve_wide<T>(layout, c.num_elements(3));
    if (c.has_input(4)) k.mask = reserve_wide<T>(layout, c.num_elements(4));
    k.y = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    k.work = layout.take(kernels::deform_conv_scratch_bytes<C>(k.params, k.max_threads));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (y.count == 0) return;
    const C *in = widen(c, c.in<T>(0), x), *filters = widen(c, c.in<T>(1), w), *moves = widen(c, c.in<T>(2), offset);
    const C *addend = widen(c, c.in<T>(3), bias), *factors = widen(c, c.in<T>(4), mask);
    kernels::deform_conv<C>(params, in, filters, moves, addend, factors, wide_output(c, c.out<T>(0), y), scratch_at(c, work), max_threads,
                            c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

template <typename T>
struct DeformConvGrad {
  kernels::DeformParams params;
  int max_threads;

  static DeformConvGrad bind(BindContext& c) {
    check_image_rank(c);
    const Shape& dy = c.shape(5);
    if (dy.rank() != 4) throw Error(ErrorCode::invalid_argument, fmt::format("the gradient is of rank {}, not 4", dy.rank()));
    DeformConvGrad k{bind_deform(c, bind_convolution(c, {.x = 0, .w = 1, .b = -1}, dy)), c.max_threads()};
    check_equal(c.num_elements(5), k.params.conv.N * k.params.conv.M * k.params.conv.window.out_size(), "elements of the gradient");
    c.request_scratch(kernels::deform_conv_gradient_scratch_bytes<T>(k.params, k.max_threads));
    return k;
  }
  void run(RunContext& c) const {
    const kernels::DeformGradients<T> gradients{c.out<T>(0), c.out<T>(1), c.out<T>(2), c.in<T>(4) ? c.out<T>(3) : nullptr};
    kernels::deform_conv_gradient(params, c.in<T>(0), c.in<T>(1), c.in<T>(2), c.in<T>(4), c.in<T>(5), gradients, c.scratch<void>(),
                                  max_threads, c.pool());
  }
};

void infer_deform_conv_grad(InferContext& c) {
  for (int i : {0, 1, 2}) c.set_output(i, c.input(i));
  if (!c.has_output(3)) return;
  if (c.has_input(4))
    c.set_output(3, c.input(4));
  else
    c.set_output(3, c.dtype(0), {0});  // nothing reads the gradient of an absent bias or mask
}

Gradients deform_conv_gradient(GradientContext& g) {
  const ValueId dy = g.grad_output(0);
  const Attributes attributes = g.attributes();
  const std::vector<ValueId> made =
      g.op_n("DeformConvGrad", {g.input(0), g.input(1), g.input(2), kNoValue, g.input(4), dy}, 4, attributes, "treadle");
  Gradients result{made[0], made[1], made[2], kNoValue, made[3]};
  if (g.wants(3)) result[3] = g.reduce_sum(dy, {0, 2, 3}, /*keepdims=*/false);
  return result;
}

}  // namespace

std::vector<OpDef> deform_conv_ops() {
  constexpr TypeSet kGradientTypes{DType::float32, DType::float64};
  return {{.name = "DeformConv",
           .since = {19, 22},
           .inputs = {{"X", kFloats, "T"},
                      {"W", kFloats, "T"},
                      {"offset", kFloats, "T"},
                      {"B", kFloats, "T", Presence::optional},
                      {"mask", kFloats, "T", Presence::optional}},
           .outputs = {{"Y", kFloats, "T"}},
           .attributes = {{"dilations"}, {"group", int64_t{1}}, {"kernel_shape"}, {"offset_group", int64_t{1}}, {"pads"}, {"strides"}},
           .infer = infer_deform_conv,
           .cost = deform_conv_cost,
           .kernels = typed<DeformConv, float, double, Float16, BFloat16>(),
           .gradient = deform_conv_gradient},
          {.name = "DeformConvGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kGradientTypes, "T"},
                      {"W", kGradientTypes, "T"},
                      {"offset", kGradientTypes, "T"},
                      {"B", kGradientTypes, "T", Presence::optional},
                      {"mask", kGradientTypes, "T", Presence::optional},
                      {"dY", kGradientTypes, "T"}},
           .outputs = {{"dX", kGradientTypes, "T"},
                       {"dW", kGradientTypes, "T"},
                       {"doffset", kGradientTypes, "T"},
                       {"dmask", kGradientTypes, "T", Presence::optional}},
           .attributes = {{"dilations"}, {"group", int64_t{1}}, {"kernel_shape"}, {"offset_group", int64_t{1}}, {"pads"}, {"strides"}},
           .infer = infer_deform_conv_grad,
           .kernels = typed<DeformConvGrad, float, double>()}};
}

}  // namespace treadle::ops
