// Implements gradients of convolutions: the operators ConvGradInput and ConvGradWeights of the treadle domain, and the gradient rules.
#include "kernels/conv/conv_gradient.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "kernels/conv/conv.h"
#include "kernels/conv/plain.h"
#include "ops/given_shape.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/nn/convolution.h"
#include "ops/nn/window.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {

kernels::ConvParams bind_conv_gradient(const BindContext& c, const Shape& x, const Shape& w, const Shape& y) {
  if (x.rank() != y.rank() || x.rank() != w.rank() || x.rank() < 3 || x.rank() > 5)
    throw Error(ErrorCode::invalid_argument, fmt::format("X {}, W {} and Y {} are of no convolution with one to three spatial axes",
                                                         to_string(x), to_string(w), to_string(y)));
  kernels::ConvParams p;
  p.N = x[0], p.C = x[1], p.M = w[0], p.group = c.get_int("group", 1);
  if (p.group < 1 || y[0] != x[0] || y[1] != w[0] || w[1] * p.group != x[1])
    throw Error(ErrorCode::invalid_argument,
                fmt::format("X {}, W {} and Y {} are of no convolution with {} groups", to_string(x), to_string(w), to_string(y), p.group));
  p.window = bind_gradient_window(c.node().attributes, spatial(x), spatial(y), spatial(w), y, "convolution");
  kernels::check_conv(p);
  return p;
}

namespace {

using kernels::ConvParams;

constexpr TypeSet kTypes{DType::float32, DType::float64};

Cost input_cost(const ShapeContext& c) {
  return {2 * static_cast<double>(c.num_elements(0)) * static_cast<double>(c.shape(1).product(1, c.shape(1).rank())),
          c.size_bytes(0) + c.size_bytes(1)};
}
Cost weights_cost(const ShapeContext& c) {
  const Shape& w = c.output_shape(0);
  return {2 * static_cast<double>(c.num_elements(0)) * static_cast<double>(w.product(1, w.rank())), c.size_bytes(0) + c.size_bytes(1)};
}

// Computes dX, which is the transposed convolution of dY with the weights.
template <typename T>
struct ConvGradInput {
  ConvParams params;
  int max_threads;

  static ConvGradInput bind(BindContext& c) {
    ConvGradInput k{bind_conv_gradient(c, c.output_shape(0), c.shape(1), c.shape(0)), c.max_threads()};
    std::swap(k.params.C, k.params.M);
    if (std::is_same_v<T, float>) c.request_scratch(kernels::conv_transpose_scratch_bytes(k.params, k.max_threads));
    return k;
  }
  void run(RunContext& c) const {
    if constexpr (std::is_same_v<T, float>)
      kernels::conv_transpose(params, c.in<float>(0), c.in<float>(1), c.out<float>(0), {}, c.scratch<std::byte>(), max_threads, c.pool());
    else
      kernels::conv_transpose_plain(params, c.in<T>(0), c.in<T>(1), static_cast<const T*>(nullptr), c.out<T>(0), c.pool());
  }
};

template <typename T>
struct ConvGradWeights {
  ConvParams params;
  int max_threads;

  static ConvGradWeights bind(BindContext& c) {
    ConvGradWeights k{bind_conv_gradient(c, c.shape(1), c.output_shape(0), c.shape(0)), c.max_threads()};
    c.request_scratch(kernels::conv_grad_weights_scratch_bytes<T>(k.params, k.max_threads));
    return k;
  }
  void run(RunContext& c) const {
    kernels::conv_grad_weights(params, c.in<T>(0), c.in<T>(1), c.out<T>(0), c.scratch<std::byte>(), max_threads, c.pool());
  }
};

// Second derivatives. A convolution is linear in its image and in its filters, and its two gradients are also linear in dY. Each of these
// three operators computes the gradients of the others.

std::vector<ValueId> input_gradient(GradientContext& g) {
  const ValueId dy = g.input(0), w = g.input(1), u = g.grad_output(0);
  const Attributes attributes = g.attributes();
  return {g.op("Conv", {u, w}, attributes), g.op("ConvGradWeights", {dy, u, g.shape_of(w)}, attributes, "treadle")};
}

std::vector<ValueId> weights_gradient(GradientContext& g) {
  const ValueId dy = g.input(0), x = g.input(1), u = g.grad_output(0);
  const Attributes attributes = g.attributes();
  return {g.op("Conv", {x, u}, attributes), g.op("ConvGradInput", {dy, u, g.shape_of(x)}, attributes, "treadle")};
}

OpDef conv_gradient_op(std::string_view name, std::string_view other, Cost (*cost)(const ShapeContext&), std::vector<KernelDef> kernels,
                       GradientRule gradient, ChannelsLast channels_last) {
  return {.name = name,
          .domain = "treadle",
          .since = {1},
          .inputs = {{"dY", kTypes, "T"}, {other, kTypes, "T"}, {"shape", kInt64}},
          .outputs = {{"gradient", kTypes, "T"}},
          .attributes = convolution_attributes(),
          .infer = infer_given_shape<2>,
          .cost = cost,
          .kernels = std::move(kernels),
          .gradient = gradient,
          .value_inputs = {2},
          .channels_last = channels_last};
}

}  // namespace

namespace gradients {

Gradients convolution(GradientContext& g, ValueId x, ValueId w, ValueId dy) {
  const Attributes attributes = g.attributes();
  return {g.op("ConvGradInput", {dy, w, g.shape_of(x)}, attributes, "treadle"),
          g.op("ConvGradWeights", {dy, x, g.shape_of(w)}, attributes, "treadle")};
}

}  // namespace gradients

std::vector<OpDef> conv_gradient_ops() {
  return {conv_gradient_op("ConvGradInput", "W", input_cost, typed<ConvGradInput, float, double>(), input_gradient,
                           {ChannelsLast::How::input_gradient, "NhwcConvGradInput"}),
          conv_gradient_op("ConvGradWeights", "X", weights_cost, typed<ConvGradWeights, float, double>(), weights_gradient,
                           {ChannelsLast::How::weights_gradient, "NhwcConvGradWeights"})};
}

}  // namespace treadle::ops
