// Implements ConvTranspose, which computes what is, for a convolution, the gradient with respect to its image.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/conv/conv.h"
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
namespace {

using kernels::ConvParams;

/// The attributes of a ConvTranspose, and the extents that follow from them.
struct TransposedWindow {
  size_t rank;
  std::array<int64_t, 3> strides, dilations, output_padding, pad_begin{}, pad_end{};
  std::string_view auto_pad;
  std::vector<int64_t> output_shape;  // empty if the attribute is absent

  TransposedWindow(const Attributes& attributes, size_t spatial_rank)
      : rank(spatial_rank),
        strides(spatial_ints(attributes, "strides", rank, 1)),
        dilations(spatial_ints(attributes, "dilations", rank, 1)),
        output_padding(spatial_ints(attributes, "output_padding", rank, 0)),
        auto_pad(attributes.get_string("auto_pad", "NOTSET")) {
    for (size_t i = 0; i < rank; ++i)
      if (strides[i] < 1 || dilations[i] < 1 || strides[i] > INT32_MAX || dilations[i] > INT32_MAX ||
          std::abs(output_padding[i]) > INT32_MAX)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("strides contains {}, dilations {}, output_padding {}", strides[i], dilations[i], output_padding[i]));
    if (auto_pad != "NOTSET" && !auto_pad.empty() && auto_pad != "VALID" && !is_same())
      throw Error(ErrorCode::invalid_argument, fmt::format("auto_pad is \"{}\", not NOTSET, SAME_UPPER, SAME_LOWER or VALID", auto_pad));
    const std::vector<int64_t>& pads = attributes.get_ints("pads");
    if (!pads.empty() && (auto_pad == "NOTSET" || auto_pad.empty())) {
      if (pads.size() != 2 * rank)
        throw Error(ErrorCode::invalid_argument, fmt::format("pads has {} elements for {} spatial axes", pads.size(), rank));
      for (size_t i = 0; i < rank; ++i) pad_begin[i] = pads[i], pad_end[i] = pads[rank + i];
    }
    const std::vector<int64_t>& shape = attributes.get_ints("output_shape");
    if (shape.empty()) return;
    // Some exporters include the extents of batch and channels in output_shape.
    if (shape.size() != rank && shape.size() != rank + 2)
      throw Error(ErrorCode::invalid_argument, fmt::format("output_shape has {} elements for {} spatial axes", shape.size(), rank));
    output_shape.assign(shape.end() - static_cast<std::ptrdiff_t>(rank), shape.end());
  }

  bool is_same() const { return auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER"; }
  template <typename Extent>
  Extent full_extent(size_t i, const Extent& in, const Extent& kernel) const {
    return (in - 1) * strides[i] + output_padding[i] + (kernel - 1) * dilations[i] + 1;
  }
  Dim out_extent(size_t i, const Dim& in, const Dim& kernel) const {
    if (!output_shape.empty()) return output_shape[i];
    if (is_same()) return in * strides[i];
    return full_extent(i, in, kernel) - pad_begin[i] - pad_end[i];
  }
  /// Computes the pads of axis i if they depend on output_shape or auto_pad.
  void settle_pads(size_t i, int64_t in, int64_t kernel, int64_t out) {
    if (output_shape.empty() && !is_same()) return;
    const int64_t total = full_extent(i, in, kernel) - out;
    // Rounds down even if `total` is negative, which means that the output is longer than the windows reach.
    const int64_t half = (total - (total & 1)) / 2;
    pad_begin[i] = auto_pad == "SAME_UPPER" ? half : total - half;
    pad_end[i] = total - pad_begin[i];
  }
};

void infer_conv_transpose(InferContext& c) {
  if (!c.has_rank(0) || !c.has_rank(1)) return c.set_output_dtype(0, c.dtype(0));
  const SymbolicShape &x = c.shape(0), &w = c.shape(1);
  if (x.size() != w.size() || x.size() < 3)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("X is of rank {} and W of rank {}; both have channels and at least one spatial axis", x.size(), w.size()));
  const int64_t group = c.get_int("group", 1);
  if (group < 1) throw Error(ErrorCode::invalid_argument, fmt::format("group is {}", group));
  unify(x[1], w[0], "channels of X and W");
  if (c.has_input(2) && c.has_rank(2)) {
    if (c.rank(2) != 1) throw Error(ErrorCode::invalid_argument, fmt::format("B is of rank {}, not 1", c.rank(2)));
    unify(c.shape(2)[0], w[1] * group, "B and the filters of W");
  }
  const TransposedWindow window(c.attributes(), x.size() - 2);
  SymbolicShape out{x[0], w[1] * group};
  for (size_t i = 0; i < window.rank; ++i) {
    out.push_back(window.out_extent(i, x[2 + i], w[2 + i]));
    if (out.back().is_const() && out.back().value() < 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("the spatial axis {} gets an extent of {}", i, out.back().value()));
  }
  c.set_output(0, c.dtype(0), std::move(out));
}

Cost conv_transpose_cost(const ShapeContext& c) {
  const Shape& w = c.shape(1);
  return {2 * static_cast<double>(c.num_elements(0)) * static_cast<double>(w.product(1, w.rank())),
          c.size_bytes(0) + c.size_bytes(1) +
              static_cast<double>(c.output_shape(0).num_elements()) * static_cast<double>(bits_of(c.dtype(0))) / 8};
}

}  // namespace

kernels::ConvParams bind_conv_transpose(const BindContext& c) {
  const Shape &x = c.shape(0), &w = c.shape(1), &y = c.output_shape(0);
  ConvParams p;
  p.group = c.get_int("group", 1);
  p.N = x[0], p.C = x[1], p.M = w[1] * p.group;
  check_equal(w[0], p.C, "channels of X and W");
  check_kernel_shape(c.node().attributes, spatial(w));
  if (c.has_input(2)) check_equal(c.num_elements(2), p.M, "B and the filters of W");
  TransposedWindow window(c.node().attributes, static_cast<size_t>(x.rank() - 2));
  int64_t pads[6];
  for (size_t i = 0; i < window.rank; ++i) {
    const int axis = static_cast<int>(2 + i);
    window.settle_pads(i, x[axis], w[axis], y[axis]);
    pads[i] = window.pad_begin[i], pads[window.rank + i] = window.pad_end[i];
  }
  // A ConvTranspose is described by the convolution from Y to X whose input gradient it computes.
  p.window = kernels::make_window(spatial(y), spatial(x), spatial(w), {window.strides.data(), window.rank}, {pads, 2 * window.rank},
                                  {window.dilations.data(), window.rank});
  kernels::check_conv(p);
  return p;
}

namespace {

// The kernel of ConvTranspose for float32 and 16-bit floats (T).
template <typename T>
struct ConvTranspose {
  ConvParams params;
  Wide x, w, b, y;
  int64_t work;
  int max_threads;

  static ConvTranspose bind(BindContext& c) {
    ConvTranspose k{bind_conv_transpose(c), {}, {}, {}, {}, 0, c.max_threads()};
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, c.num_elements(0));
    k.w = reserve_wide<T>(layout, c.num_elements(1));
    if (c.has_input(2)) k.b = reserve_wide<T>(layout, c.num_elements(2));
    k.y = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    k.work = layout.take(kernels::conv_transpose_scratch_bytes(k.params, k.max_threads));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (y.count == 0) return;
    const float *in = widen(c, c.in<T>(0), x), *filters = widen(c, c.in<T>(1), w);
    kernels::ConvEpilogue epilogue;
    epilogue.bias = widen(c, c.in<T>(2), b);
    kernels::conv_transpose(params, in, filters, wide_output(c, c.out<T>(0), y), epilogue, scratch_at(c, work), max_threads, c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

struct ConvTransposeDouble {
  ConvParams params;
  static ConvTransposeDouble bind(BindContext& c) { return {bind_conv_transpose(c)}; }
  void run(RunContext& c) const {
    kernels::conv_transpose_plain(params, c.in<double>(0), c.in<double>(1), c.in<double>(2), c.out<double>(0), c.pool());
  }
};

// A ConvTranspose computes the gradient of a Conv with respect to its input. So its own gradient, with respect to X, is that Conv of dY.
Gradients own_pads_gradient(GradientContext& g) {
  const ValueId x = g.input(0), w = g.input(1), dy = g.grad_output(0);
  Attributes window;
  for (const char* name : {"dilations", "group", "kernel_shape", "pads", "strides"})
    if (const Attribute* value = g.attributes().find(name)) window.set(name, *value);
  Gradients result{g.op("Conv", {dy, w}, window), g.op("ConvGradWeights", {x, dy, g.shape_of(w)}, window, "treadle")};
  if (g.input(2) != kNoValue) result.push_back(sum_per_channel(g, dy));
  return result;
}

/// Pads dY by amounts that are known only during the run: adds zeros where the output was cropped, and removes elements that no window
/// reached.
ValueId padded_to_windows(GradientContext& g, const TransposedWindow& window) {
  const auto spatial = [&](ValueId x) { return g.op("Shape", {x}, {{"start", int64_t{2}}}); };
  auto numbers = [&](const std::array<int64_t, 3>& values) {
    return g.ints({values.begin(), values.begin() + static_cast<std::ptrdiff_t>(window.rank)});
  };
  const ValueId one = g.ints({1}), two = g.ints({2}), none = g.ints({0, 0});
  const ValueId steps = g.add(g.mul(g.sub(spatial(g.input(0)), one), numbers(window.strides)), one);
  const ValueId windows = g.add(steps, g.mul(g.sub(spatial(g.input(1)), one), numbers(window.dilations)));
  const ValueId padding = numbers(window.output_padding);
  const ValueId total = g.sub(g.add(windows, padding), spatial(g.output(0)));
  // Rounds down even if `total` is negative, by subtracting its remainder (0 or 1).
  const ValueId half = g.div(g.sub(total, g.op("Mod", {total, two})), two), larger = g.sub(total, half);
  const bool upper = window.auto_pad == "SAME_UPPER";
  const ValueId begin = upper ? half : larger, end = g.sub(upper ? larger : half, padding);
  return g.op("Pad", {g.grad_output(0), g.op("Concat", {none, begin, none, end}, {{"axis", int64_t{0}}})});
}

// Computes explicit pads from auto_pad or output_shape, as the forward pass does, and differentiates a node with these pads.
Gradients conv_transpose_gradient(GradientContext& g) {
  const std::string_view auto_pad = g.attributes().get_string("auto_pad", "NOTSET");
  if ((auto_pad == "NOTSET" || auto_pad.empty()) && g.attributes().get_ints("output_shape").empty()) return own_pads_gradient(g);
  const ValueId x = g.input(0), w = g.input(1), dy = g.grad_output(0);
  const auto rank = static_cast<size_t>(rank_of(g, x));
  const SymbolicShape in = *g.type(x).shape, kernel = *g.type(w).shape, out = *g.type(g.output(0)).shape;
  TransposedWindow window(g.attributes(), rank - 2);
  std::vector<int64_t> pads(2 * window.rank), widths(2 * rank, 0);
  bool longer = false, known = true;
  const bool settled = window.output_shape.empty() && !window.is_same();  // auto_pad is VALID
  for (size_t axis = 2; axis < rank; ++axis) known &= in[axis].is_const() && kernel[axis].is_const() && out[axis].is_const();
  for (size_t i = 0; (settled || known) && i < window.rank; ++i) {
    if (!settled) window.settle_pads(i, in[2 + i].value(), kernel[2 + i].value(), out[2 + i].value());
    // Elements that no window reaches have no gradient to pass on, so a Pad with negative widths removes them.
    pads[i] = std::max<int64_t>(window.pad_begin[i], 0), pads[window.rank + i] = std::max<int64_t>(window.pad_end[i], 0);
    widths[2 + i] = std::min<int64_t>(window.pad_begin[i], 0), widths[rank + 2 + i] = std::min<int64_t>(window.pad_end[i], 0);
    longer |= widths[2 + i] < 0 || widths[rank + 2 + i] < 0;
  }
  Attributes attributes;
  for (const char* name : {"dilations", "group", "kernel_shape", "strides"})
    if (const Attribute* value = g.attributes().find(name)) attributes.set(name, *value);
  attributes.set("pads", std::move(pads));
  const ValueId reached = !settled && !known ? padded_to_windows(g, window) : longer ? g.op("Pad", {dy, g.ints(std::move(widths))}) : dy;
  Gradients result{g.op("Conv", {reached, w}, attributes), g.op("ConvGradWeights", {x, reached, g.shape_of(w)}, attributes, "treadle"),
                   kNoValue};
  if (g.wants(2)) result[2] = sum_per_channel(g, dy);
  return result;
}

}  // namespace

std::vector<OpDef> conv_transpose_ops() {
  return {{.name = "ConvTranspose",
           .since = {1, 11, 22},
           .inputs = {{"X", kFloats, "T"}, {"W", kFloats, "T"}, {"B", kFloats, "T", Presence::optional}},
           .outputs = {{"Y", kFloats, "T"}},
           .attributes = convolution_attributes({{"output_padding"}, {"output_shape"}}),
           .infer = infer_conv_transpose,
           .cost = conv_transpose_cost,
           .kernels = typed<ConvTranspose, float, Float16, BFloat16>() + built_kernel<ConvTransposeDouble, double>(),
           .gradient = conv_transpose_gradient,
           .half = HalfFloats::float32_by_itself,
           .channels_last = {ChannelsLast::How::transposed_convolution, "NhwcConvTranspose"}}};
}

}  // namespace treadle::ops
