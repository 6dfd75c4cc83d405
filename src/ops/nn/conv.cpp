// Implements Conv with one to three spatial axes.
#include "kernels/conv/conv.h"

#include <fmt/format.h>

#include <vector>

#include "graph/infer.h"
#include "graph/inferred_types.h"
#include "graph/op_def.h"
#include "kernels/conv/plain.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/nn/convolution.h"
#include "ops/nn/window.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {

void infer_convolution(InferContext& c, const ConvolutionInputs& at, DType result) {
  if (!c.has_rank(at.x) || !c.has_rank(at.w)) {
    if (!c.has_rank(at.x) && !c.has_rank(at.w)) return c.set_output_dtype(0, result);
    const int rank = c.has_rank(at.x) ? c.rank(at.x) : c.rank(at.w);
    return c.set_output(0, result, c.data_dependent_shape("conv", rank));
  }
  const SymbolicShape &x = c.shape(at.x), &w = c.shape(at.w);
  if (x.size() != w.size() || x.size() < 3)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("X is of rank {} and W of rank {}; both have batch or filters, channels, and at least one spatial axis",
                            x.size(), w.size()));
  const int64_t group = c.get_int("group", 1);
  if (group < 1) throw Error(ErrorCode::invalid_argument, fmt::format("group is {}", group));
  if (x[1].is_const() && w[1].is_const() && x[1].value() != w[1].value() * group)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("W has {} input channels, X has {} (group={})", w[1].value(), x[1].value(), group));
  assume_equal(x[1], w[1] * group, "channels of X and of W in all groups");
  if (w[0].is_const() && w[0].value() % group != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} filters cannot be split into {} groups", w[0].value(), group));
  const std::vector<int64_t>& kernel_shape = c.get_ints("kernel_shape");
  const SymbolicShape kernel = spatial(w);
  for (size_t i = 0; i < std::min(kernel_shape.size(), kernel.size()); ++i) unify(kernel_shape[i], kernel[i], "kernel_shape and W");
  if (at.b >= 0 && c.has_input(at.b) && c.has_rank(at.b)) {
    if (c.rank(at.b) != 1) throw Error(ErrorCode::invalid_argument, fmt::format("B is of rank {}, not 1", c.rank(at.b)));
    unify(c.shape(at.b)[0], w[0], "B and the filters of W");
  }
  SymbolicShape out = infer_window(c.attributes(), spatial(x), kernel);
  out.insert(out.begin(), {x[0], w[0]});
  c.set_output(0, result, std::move(out));
}

kernels::ConvParams bind_convolution(const BindContext& c, const ConvolutionInputs& at) {
  return bind_convolution(c, at, c.output_shape(0));
}

kernels::ConvParams bind_convolution(const BindContext& c, const ConvolutionInputs& at, const Shape& result) {
  const Shape &x = c.shape(at.x), &w = c.shape(at.w);
  kernels::ConvParams p;
  p.N = x[0], p.C = x[1], p.M = w[0], p.group = c.get_int("group", 1);
  p.window = bind_window(c.node().attributes, spatial(x), spatial(result), spatial(w));
  kernels::check_conv(p);
  check_kernel_shape(c.node().attributes, spatial(w));
  check_equal(w[1] * p.group, p.C, "channels of W, times group, and of X");
  if (at.b >= 0 && c.has_input(at.b)) check_equal(c.num_elements(at.b), p.M, "B and the filters of W");
  return p;
}

namespace {

using kernels::ConvParams;

void infer_conv(InferContext& c) { infer_convolution(c, {}, c.dtype(0)); }

Cost conv_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  const Shape& w = c.shape(1);
  return {2 * outputs * static_cast<double>(w.product(1, w.rank())),
          c.size_bytes(0) + c.size_bytes(1) + outputs * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}

/// Constant 16-bit weights, widened to float32 when the session is created.
struct WideWeights final : PackedState {
  std::vector<float> values;
  size_t size_bytes() const override { return values.size() * sizeof(float); }
};

// The kernel of Conv for float32 and 16-bit floats (T).
template <typename T>
struct Conv {
  ConvParams params;
  Wide x, w, b, y;
  int64_t work;
  int max_threads;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    if constexpr (computes_in_itself<T>) return nullptr;
    auto state = std::make_unique<WideWeights>();
    if (const Tensor* weights = c.constant(1)) {
      const Tensor dense = weights->contiguous();
      state->values.resize(static_cast<size_t>(dense.num_elements()));
      convert_array(dense.data<T>(), state->values.data(), dense.num_elements(), nullptr);
    }
    return state;
  }
  static Conv bind(BindContext& c) {
    Conv k{bind_convolution(c, {}), {}, {}, {}, {}, 0, c.max_threads()};
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, c.num_elements(0));
    k.w = reserve_wide<T>(layout, c.num_elements(1));
    if (c.has_input(2)) k.b = reserve_wide<T>(layout, c.num_elements(2));
    k.y = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    k.work = layout.take(kernels::conv_scratch_bytes(k.params, k.max_threads));
    c.request_scratch(layout.total());
    return k;
  }
  const float* weights(RunContext& c) const {
    if constexpr (!computes_in_itself<T>) {
      const std::vector<float>& packed = c.packed<WideWeights>().values;
      if (!packed.empty()) return packed.data();
    }
    return widen(c, c.in<T>(1), w);
  }
  void run(RunContext& c) const {
    if (y.count == 0) return;
    const float* in = widen(c, c.in<T>(0), x);
    const float* filters = weights(c);
    kernels::ConvEpilogue epilogue;
    epilogue.bias = widen(c, c.in<T>(2), b);
    float* out = wide_output(c, c.out<T>(0), y);
    kernels::conv(params, in, filters, out, epilogue, scratch_at(c, work), max_threads, c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

struct ConvDouble {
  ConvParams params;
  static ConvDouble bind(BindContext& c) { return {bind_convolution(c, {})}; }
  void run(RunContext& c) const {
    kernels::conv_plain(params, c.in<double>(0), c.in<double>(1), c.in<double>(2), c.out<double>(0), c.pool());
  }
};

Gradients conv_gradient(GradientContext& g) {
  const ValueId dy = g.grad_output(0);
  Gradients result = gradients::convolution(g, g.input(0), g.input(1), dy);
  if (g.input(2) != kNoValue) result.push_back(sum_per_channel(g, dy));
  return result;
}

}  // namespace

std::vector<OpDef> conv_ops() {
  return {{.name = "Conv",
           .since = {1, 11, 22},
           .inputs = {{"X", kFloats, "T"}, {"W", kFloats, "T"}, {"B", kFloats, "T", Presence::optional}},
           .outputs = {{"Y", kFloats, "T"}},
           .attributes = convolution_attributes(),
           .infer = infer_conv,
           .cost = conv_cost,
           .kernels = typed<Conv, float, Float16, BFloat16>() + built_kernel<ConvDouble, double>(),
           .gradient = conv_gradient,
           .decompose = crop_negative_pads,
           .half = HalfFloats::float32_by_itself,
           .channels_last = {ChannelsLast::How::convolution, "NhwcConv"}}};
}

}  // namespace treadle::ops
