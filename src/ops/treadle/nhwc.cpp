// Implements convolutions of the treadle domain on images with channels last, X[N, spatial..., C], in float32. The layout pass replaces
// Conv and ConvTranspose by them. Weights stay in ONNX's order; the kernels pack them.
#include "kernels/conv/nhwc.h"

#include <fmt/format.h>

#include "core/base/checked.h"
#include "core/files/file.h"
#include "core/values/large_memory.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/conv/conv_depthwise.h"
#include "kernels/conv/nhwc_bf16.h"
#include "kernels/conv/scaled_pointwise.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/nn/convolution.h"
#include "ops/nn/window.h"
#include "ops/precision.h"
#include "ops/treadle/nhwc.h"
#include "ops/treadle/nhwc_functions.h"
#include "ops/treadle/nhwc_packed.h"
#include "treadle/error.h"
#include "treadle/tensor.h"

namespace treadle::ops {
namespace {

using kernels::ConvEpilogue;
using kernels::ConvParams;
using kernels::NhwcMethod;

constexpr TypeSet kFloat32{DType::float32};

/// Returns true if a NhwcConv reads its image X with channels first, [N, C, spatial...], as ONNX's Conv does.
bool reads_planes(const Attributes& attributes) { return attributes.get_int("planes", 0) != 0; }

void infer_conv(InferContext& c) {
  check_image_rank(c, 0), check_image_rank(c, 1);
  const SymbolicShape &x = c.shape(0), &w = c.shape(1);
  if (x.size() != w.size()) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {} and W of rank {}", x.size(), w.size()));
  check_groups(c, reads_planes(c.attributes()) ? x[1] : x.back(), w);
  SymbolicShape out = infer_window(c.attributes(), reads_planes(c.attributes()) ? spatial(x) : inner(x), spatial(w));
  out.insert(out.begin(), x[0]);
  out.push_back(w[0]);
  c.set_output(0, DType::float32, std::move(out));
}

/// A NhwcConvDepthwise is two convolutions. Returns the attributes of the first one, which have the prefix "inner_".
Attributes attributes_of_first(const Attributes& attributes) {
  Attributes first;
  for (const char* name : {"dilations", "pads", "strides"}) first.set(name, attributes.get_ints(fmt::format("inner_{}", name)));
  first.set("auto_pad", std::string(attributes.get_string("inner_auto_pad", "NOTSET")));
  return first;
}

/// Infers the spatial extents of the image between the two convolutions.
SymbolicShape infer_between(const Attributes& attributes, const SymbolicShape& x, const SymbolicShape& w) {
  return infer_window(attributes_of_first(attributes), reads_planes(attributes) ? spatial(x) : inner(x), spatial(w));
}
Shape between_of(const ShapeContext& c) {
  auto symbolic = [](const Shape& shape) { return SymbolicShape(shape.dims().begin(), shape.dims().end()); };
  Shape between;
  for (const Dim& dim : infer_between(c.node().attributes, symbolic(c.shape(0)), symbolic(c.shape(1)))) between.push_back(dim.value());
  return between;
}

void infer_conv_depthwise(InferContext& c) {
  for (int input : {0, 1, 3})
    if (!c.has_rank(input) || c.rank(input) != 4) throw Error(ErrorCode::invalid_argument, "X, W and D are of rank 4");
  SymbolicShape out = infer_window(c.attributes(), infer_between(c.attributes(), c.shape(0), c.shape(1)), spatial(c.shape(3)));
  out.insert(out.begin(), c.shape(0)[0]);
  out.push_back(c.shape(3)[0]);
  c.set_output(0, DType::float32, std::move(out));
}

void infer_conv_transpose(InferContext& c) {
  check_image_rank(c, 0), check_image_rank(c, 1);
  const SymbolicShape &x = c.shape(0), &w = c.shape(1);
  if (x.size() != w.size()) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {} and W of rank {}", x.size(), w.size()));
  SymbolicShape out{x[0]};
  for (size_t i = 1; i + 1 < x.size(); ++i) out.push_back(x[i] * w[i + 1]);
  out.push_back(w[1]);
  c.set_output(0, DType::float32, std::move(out));
}

Cost conv_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  const Shape& w = c.shape(1);
  return {2 * outputs * static_cast<double>(w.product(1, w.rank())), c.size_bytes(0) + c.size_bytes(1) + 4 * outputs};
}
Cost pair_cost(const ShapeContext& c) {
  const Shape &w = c.shape(1), &d = c.shape(3), out = c.output_shape(0);
  const double outputs = static_cast<double>(out.num_elements()),
               pixels = static_cast<double>(c.shape(0)[0] * between_of(c).num_elements());
  return {2 * pixels * static_cast<double>(w.num_elements()) + 2 * outputs * static_cast<double>(d[2] * d[3]),
          c.size_bytes(0) + c.size_bytes(1) + c.size_bytes(3) + 4 * outputs};
}
Cost transpose_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {2 * outputs * static_cast<double>(c.shape(1)[0]), c.size_bytes(0) + c.size_bytes(1) + 4 * outputs};
}
struct ConstantWeights {
  static constexpr uint32_t packs = 1U << 1, strided_inputs = 1, strided_outputs = 1;
  static std::string declines(const CreateContext& c) { return c.stored(1) ? "" : "W is not constant"; }
  static std::unique_ptr<PackedState> create(const CreateContext& c) { return std::make_unique<NhwcPacked>(c.stored(1)->contiguous()); }
};

// Restores packed weights from a compiled file. Their sizes depend only on the original weights, not on the image.
std::unique_ptr<PackedState> restore_conv(const Shape& w, int64_t group, std::span<const PackedPart> parts) {
  if (w.rank() < 3 || w.rank() > 4 || group < 1 || w[0] % group != 0) return nullptr;
  ConvParams p;
  p.group = group, p.M = w[0], p.C = checked_mul(w[1], group);
  for (int i = 2; i < w.rank(); ++i) p.window.kernel[i - 1] = w[i];
  // The packed layout of the depthwise method exists only for depthwise convolutions.
  const bool depthwise = p.group == p.C && p.group == p.M;
  auto size_of = [&](NhwcMethod method) {
    return method == NhwcMethod::depthwise && !depthwise ? int64_t{-1} : kernels::nhwc_packed_size(p, method);
  };
  return NhwcPacked::restore(parts, w, size_of);
}

struct Convolution : ConstantWeights {
  ConvParams params;
  ConvEpilogue epilogue;
  NhwcMethod method;
  const float *weights = nullptr, *packed = nullptr;
  const uint32_t* packed_bf16 = nullptr;  // if not null, used instead of the other two
  kernels::Bf16Form form = kernels::Bf16Form::one;
  int max_threads;

  static Convolution bind(BindContext& c) {
    Convolution k;
    ConvParams& p = k.params = bind_nhwc_conv(c);
    k.epilogue = bind_epilogue(c);
    k.method = kernels::nhwc_method(p, choice_of(c.node().attributes));
    k.max_threads = c.max_threads();
    if (const auto form = bf16_form(c.node().attributes); form && kernels::nhwc_bf16_pays(p, k.method, *form)) {
      k.form = *form;
      k.packed_bf16 = c.packed<NhwcPacked>().conv_bf16(p, k.form);
      c.request_scratch(kernels::nhwc_bf16_scratch_bytes(p, k.form));
      return k;
    }
    const NhwcPacked::Form packed = c.packed<NhwcPacked>().conv(p, k.method);
    k.weights = packed.weights;
    k.packed = packed.packed;
    c.request_scratch(kernels::nhwc_scratch_bytes(p, k.method, k.max_threads));
    return k;
  }
  void run(RunContext& c) const {
    ConvEpilogue e = epilogue;
    e.bias = c.in<float>(2);
    e.residual = c.in<float>(3);
    if (packed_bf16 != nullptr)
      return kernels::nhwc_bf16_conv(params, form, c.in<float>(0), packed_bf16, c.out<float>(0), e, c.scratch<void>(), c.pool());
    kernels::nhwc_conv(params, method, c.in<float>(0), weights, packed, c.out<float>(0), e, c.scratch<void>(), max_threads, c.pool());
  }
};

struct NhwcConv : Convolution {
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    return restore_conv(c.stored(1)->shape(), c.attributes().get_int("group", 1), parts);
  }
  static NhwcConv bind(BindContext& c) { return {Convolution::bind(c)}; }
};

// This kernel is not restored from compiled files, where its bfloat16 weights could not replace the original ones.
struct NhwcConvBf16 : Convolution {
  static std::string declines(const CreateContext& c) {
    return bf16_form(c.attributes()) ? ConstantWeights::declines(c) : "its precision is not bfloat16";
  }
  static NhwcConvBf16 bind(BindContext& c) { return {Convolution::bind(c)}; }
};

void infer_scaled_pointwise(InferContext& c) {
  for (int input : {0, 1, 2})
    if (!c.has_rank(input) || c.rank(input) != 4) throw Error(ErrorCode::invalid_argument, "X, scale and W are of rank 4");
  SymbolicShape out = c.shape(0);
  out.back() = c.shape(2)[0];
  c.set_output(0, DType::float32, std::move(out));
}

Cost scaled_pointwise_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {2 * outputs * static_cast<double>(c.shape(2)[1]), c.size_bytes(0) + c.size_bytes(2) + 4 * outputs};
}

struct NhwcScaledPointwise {
  static constexpr uint32_t packs = 1U << 2, strided_inputs = 1, strided_outputs = 1;
  ConvParams params;
  ConvEpilogue epilogue;
  const float* packed;

  static std::string declines(const CreateContext& c) { return c.stored(2) ? "" : "W is not constant"; }
  static std::unique_ptr<PackedState> create(const CreateContext& c) { return std::make_unique<NhwcPacked>(c.stored(2)->contiguous()); }
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    return restore_conv(c.stored(2)->shape(), 1, parts);
  }
  static NhwcScaledPointwise bind(BindContext& c) {
    NhwcScaledPointwise k;
    const Shape &x = c.shape(0), &w = c.shape(2);
    ConvParams& p = k.params;
    p.N = x[0], p.C = x[3], p.M = w[0];
    p.x_pixel = c.input_step(0), p.y_pixel = c.output_step(0);
    check_equal(w[1], p.C, "channels of W and of X");
    check_equal(w[2] * w[3], 1, "W's window and one");
    check_equal(c.num_elements(1), p.N * p.C, "factors of the scale, and X's images times channels");
    if (c.has_input(3)) check_equal(c.num_elements(3), p.M, "B and the filters of W");
    if (c.has_input(4)) check_equal(c.num_elements(4), c.output_shape(0).num_elements(), "elements of the residual and of Y");
    p.window = kernels::make_window(inner(x), inner(x), spatial(w), spatial(w), {}, {});
    k.epilogue = bind_epilogue(c);
    k.packed = c.packed<NhwcPacked>().conv(p, NhwcMethod::direct).packed;
    c.request_scratch(kernels::scaled_pointwise_scratch_bytes(p));
    return k;
  }
  void run(RunContext& c) const {
    ConvEpilogue e = epilogue;
    e.bias = c.in<float>(3);
    e.residual = c.in<float>(4);
    kernels::scaled_pointwise(params, c.in<float>(0), c.in<float>(1), packed, c.out<float>(0), e, c.scratch<void>(), c.pool());
  }
};

struct NhwcConvDepthwise {
  static constexpr uint32_t packs = 1U << 1 | 1U << 3, strided_inputs = 1, strided_outputs = 1;
  kernels::ConvDepthwise params;
  ConvEpilogue first, depthwise;
  const float *first_weights, *depthwise_weights;

  static std::string declines(const CreateContext& c) { return c.stored(1) && c.stored(3) ? "" : "W or D is not constant"; }
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto pack = [&](int input, const ConvParams& p, NhwcMethod method) {
      const Tensor weights = c.stored(input)->contiguous();
      const int64_t size = kernels::nhwc_packed_size(p, method);
      Tensor packed(DType::float32, Shape{size}, allocate_large(static_cast<size_t>(size) * sizeof(float)));
      kernels::nhwc_pack(p, method, reinterpret_cast<const float*>(weights.raw()), packed.data<float>());
      drop_mapped_pages(weights.raw(), weights.size_bytes());
      return packed;
    };
    const auto [first, second] = weight_params(c);
    return std::make_unique<NhwcPackedPair>(pack(1, first, NhwcMethod::direct), pack(3, second, NhwcMethod::depthwise));
  }
  // Returns the parameters of both convolutions, as far as the packed weights depend on them.
  static std::pair<ConvParams, ConvParams> weight_params(const CreateContext& c) {
    const Shape &w = c.stored(1)->shape(), &d = c.stored(3)->shape();
    ConvParams first{.N = 1, .C = w[1], .M = w[0]}, second{.N = 1, .C = d[0], .M = d[0], .group = d[0]};
    first.window.kernel[1] = w[2], first.window.kernel[2] = w[3];
    second.window.kernel[1] = d[2], second.window.kernel[2] = d[3];
    return {first, second};
  }
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    if (c.stored(1)->shape().rank() != 4 || c.stored(3)->shape().rank() != 4) return nullptr;
    const auto [first, second] = weight_params(c);
    return NhwcPackedPair::restore(parts, kernels::nhwc_packed_size(first, NhwcMethod::direct),
                                   kernels::nhwc_packed_size(second, NhwcMethod::depthwise));
  }
  static NhwcConvDepthwise bind(BindContext& c) {
    NhwcConvDepthwise k;
    const Shape &x = c.shape(0), &w = c.shape(1), &d = c.shape(3), between = between_of(c);
    ConvParams &first = k.params.first, &second = k.params.depthwise;
    first.x_planes = reads_planes(c.node().attributes);
    first.N = second.N = x[0];
    first.C = x[first.x_planes ? 1 : 3], first.M = w[0];
    second.C = second.M = second.group = d[0];
    check_equal(w[1], first.C, "channels of W and of X");
    check_equal(w[0], d[0], "filters of W and channels of D");
    check_equal(d[1], 1, "D's channels in a group, and one");
    if (c.has_input(2)) check_equal(c.num_elements(2), w[0], "B and the filters of W");
    if (c.has_input(4)) check_equal(c.num_elements(4), d[0], "E and the filters of D");
    if (c.has_input(5)) check_equal(c.num_elements(5), c.output_shape(0).num_elements(), "elements of the residual and of Y");
    first.x_pixel = first.x_planes ? 0 : c.input_step(0), second.y_pixel = c.output_step(0);
    first.window =
        bind_window(attributes_of_first(c.node().attributes), first.x_planes ? spatial(x) : inner(x), between.dims(), spatial(w));
    second.window = bind_window(c.node().attributes, between.dims(), inner(c.output_shape(0)), spatial(d));
    k.params.max_threads = c.max_threads();
    k.first = bind_epilogue(c, "inner_");
    k.depthwise = bind_epilogue(c);
    const auto& packed = c.packed<NhwcPackedPair>();
    k.first_weights = packed.first(), k.depthwise_weights = packed.depthwise();
    c.request_scratch(kernels::conv_depthwise_scratch_bytes(k.params));
    return k;
  }
  void run(RunContext& c) const {
    kernels::ConvStage stages[] = {{first_weights, first}, {depthwise_weights, depthwise}};
    stages[0].epilogue.bias = c.in<float>(2);
    stages[1].epilogue.bias = c.in<float>(4), stages[1].epilogue.residual = c.in<float>(5);
    kernels::conv_depthwise(params, c.in<float>(0), stages[0], stages[1], c.out<float>(0), c.scratch<void>(), c.pool());
  }
};

struct NhwcConvTranspose : ConstantWeights {
  ConvParams params;
  ConvEpilogue epilogue;
  const float* packed;

  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    const Shape& w = c.stored(1)->shape();
    if (w.rank() < 3 || w.rank() > 4) return nullptr;
    ConvParams p;
    p.C = w[0], p.M = w[1];
    for (int i = 2; i < w.rank(); ++i) p.window.kernel[i - 1] = w[i];
    return NhwcPacked::restore(parts, w, [&](NhwcMethod method) {
      return method == NhwcPacked::kTransposed ? kernels::nhwc_transposed_packed_size(p) : int64_t{-1};
    });
  }
  static NhwcConvTranspose bind(BindContext& c) {
    NhwcConvTranspose k;
    const Shape &x = c.shape(0), &w = c.shape(1);
    ConvParams& p = k.params;
    p.N = x[0], p.C = x[x.rank() - 1], p.M = w[1];
    p.x_pixel = c.input_step(0), p.y_pixel = c.output_step(0);
    check_equal(w[0], p.C, "channels of X and W");
    if (c.has_input(2)) check_equal(c.num_elements(2), p.M, "B and the filters of W");
    p.window = kernels::make_window(inner(c.output_shape(0)), inner(x), spatial(w), spatial(w), {}, {});
    k.epilogue = bind_epilogue(c);
    k.packed = c.packed<NhwcPacked>().transposed(p);
    return k;
  }
  void run(RunContext& c) const {
    ConvEpilogue e = epilogue;
    e.bias = c.in<float>(2);
    kernels::nhwc_transposed(params, c.in<float>(0), packed, c.out<float>(0), e, c.pool());
  }
};

}  // namespace

ConvParams bind_nhwc_conv(const BindContext& c) {
  const Shape &x = c.shape(0), &w = c.shape(1);
  ConvParams p;
  p.x_planes = reads_planes(c.node().attributes);
  p.N = x[0], p.C = x[p.x_planes ? 1 : x.rank() - 1], p.M = w[0], p.group = c.get_int("group", 1);
  p.window = bind_window(c.node().attributes, p.x_planes ? spatial(x) : inner(x), inner(c.output_shape(0)), spatial(w));
  kernels::check_conv(p);
  check_equal(w[1] * p.group, p.C, "channels of W, times group, and of X");
  if (c.has_input(2)) check_equal(c.num_elements(2), p.M, "B and the filters of W");
  if (c.has_input(3)) check_equal(c.num_elements(3), c.output_shape(0).num_elements(), "elements of the residual and of Y");
  p.x_pixel = p.x_planes ? 0 : c.input_step(0), p.y_pixel = c.output_step(0);
  return p;
}

std::vector<OpDef> nhwc_ops() {
  const std::vector<AttributeDef> activation = {{"activation", std::string_view("none")}, {"alpha", 0.0F}, {"beta", 0.0F}};
  auto joined = [](std::vector<AttributeDef> a, const std::vector<AttributeDef>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  return {{.name = "NhwcConv",
           .domain = "treadle",
           .since = {1},
           .inputs =
               {{"X", kFloat32}, {"W", kFloat32}, {"B", kFloat32, "", Presence::optional}, {"residual", kFloat32, "", Presence::optional}},
           .outputs = {{"Y", kFloat32}},
           .attributes = joined(
               joined(convolution_attributes(), activation),
               {{"planes", int64_t{0}, zero_or_one()}, {kPrecision, std::string_view("")}, {"max_weight_expansion", 0.0F}, {"rates"}}),
           .infer = infer_conv,
           .cost = conv_cost,
           .kernels = {kernel<NhwcConvBf16>("nhwc bfloat16", DType::float32), kernel<NhwcConv>("nhwc", DType::float32),
                       nhwc_conv_of_computed_weights()},
           .write_function = write_nhwc_conv,
           .function_opset = activation_opset},
          {.name = "NhwcScaledPointwise",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kFloat32},
                      {"scale", kFloat32},
                      {"W", kFloat32},
                      {"B", kFloat32, "", Presence::optional},
                      {"residual", kFloat32, "", Presence::optional}},
           .outputs = {{"Y", kFloat32}},
           .attributes = activation,
           .infer = infer_scaled_pointwise,
           .cost = scaled_pointwise_cost,
           .kernels = {kernel<NhwcScaledPointwise>("nhwc", DType::float32)}},
          {.name = "NhwcConvDepthwise",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kFloat32},
                      {"W", kFloat32},
                      {"B", kFloat32, "", Presence::optional},
                      {"D", kFloat32},
                      {"E", kFloat32, "", Presence::optional},
                      {"residual", kFloat32, "", Presence::optional}},
           .outputs = {{"Y", kFloat32}},
           .attributes = joined(joined(window_attributes({}), activation), {{"inner_activation", std::string_view("none")},
                                                                            {"inner_alpha", 0.0F},
                                                                            {"inner_beta", 0.0F},
                                                                            {"inner_auto_pad", std::string_view("NOTSET")},
                                                                            {"inner_dilations"},
                                                                            {"inner_pads"},
                                                                            {"inner_strides"},
                                                                            {"planes", int64_t{0}, zero_or_one()}}),
           .infer = infer_conv_depthwise,
           .cost = pair_cost,
           .kernels = {kernel<NhwcConvDepthwise>("rows", DType::float32)}},
          {.name = "NhwcConvTranspose",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kFloat32}, {"W", kFloat32}, {"B", kFloat32, "", Presence::optional}},
           .outputs = {{"Y", kFloat32}},
           .attributes = activation,
           .infer = infer_conv_transpose,
           .cost = transpose_cost,
           .kernels = {kernel<NhwcConvTranspose>("nhwc", DType::float32)},
           .write_function = write_nhwc_conv_transpose,
           .function_opset = activation_opset}};
}

}  // namespace treadle::ops
