// Implements products and convolutions of 8-bit integers: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files/file.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/conv/conv_int.h"
#include "kernels/gemm/gemm_int.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/math/product.h"
#include "ops/nn/convolution.h"
#include "ops/nn/window.h"
#include "ops/quantization/integer_product.h"
#include "ops/quantization/quantize_gradient.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {

IntegerProductPlan IntegerProductPlan::bind(const BindContext& c, const IntegerPlaces& at) {
  const Shape &a = c.shape(at.x), &b = c.shape(at.w);
  IntegerProductPlan p;
  p.rows = a.rank() == 1 ? 1 : a[a.rank() - 2], p.columns = b.rank() == 1 ? 1 : b.back();
  p.a_zeros = QuantizationLines::bind(c, at.x_zero, p.rows, 2, a, "a_zero_point");
  p.b_zeros = QuantizationLines::bind(c, at.w_zero, p.columns, 1, b, "b_zero_point");
  // Zero points per row belong to the rows of one matrix, so the batch must not be merged into rows.
  p.product = Product::of(a, b, !p.a_zeros.per_line);
  return p;
}

IntegerConvolutionPlan IntegerConvolutionPlan::bind(const BindContext& c, const IntegerPlaces& at, const ConvolutionInputs& inputs) {
  const kernels::ConvParams params = bind_convolution(c, inputs);
  return {params, QuantizationLines::bind(c, at.x_zero, 1, 0, c.shape(at.x), "x_zero_point"),
          QuantizationLines::bind(c, at.w_zero, params.M, 0, c.shape(at.w), "w_zero_point")};
}

IntegerScales IntegerScales::checked(const BindContext& c, const IntegerPlaces& at, const QuantizationLines& x,
                                     const QuantizationLines& w) {
  if (!x.present || !w.present) throw Error(ErrorCode::invalid_argument, "the scales of the operands are empty");
  if (at.y_scale >= 0) {
    check_equal(c.num_elements(at.y_scale), 1, "scales of the result");
    check_equal(c.num_elements(at.y_zero), 1, "zero points of the result");
  }
  return {x, w};
}

namespace {

using kernels::ByteMatrix;
using kernels::PackedI16;

constexpr TypeSet kBytes{DType::int8, DType::uint8};
constexpr TypeSet kFloat8Codes{DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz};
constexpr TypeSet kInt32{DType::int32};

/// Constant weights with their zero points, packed in the layout that the product reads. Empty if they are not constant.
struct PackedBytes final : PackedState {
  std::vector<int16_t> values;
  size_t size_bytes() const override { return values.size() * sizeof(int16_t); }
};

ByteMatrix byte_matrix(const void* data, bool is_signed, const QuantizationLines& zeros, const void* zero, int64_t elements = 0,
                       int64_t lines = 0) {
  ByteMatrix matrix{data, is_signed, zeros.present ? zero : nullptr, zeros.per_line};
  if (zeros.per_matrix) matrix.elements = elements, matrix.lines = lines;
  return matrix;
}

bool weights_are_constant(const CreateContext& c, const IntegerPlaces& at) {
  return c.constant(at.w) != nullptr && (!c.has_input(at.w_zero) || c.constant(at.w_zero) != nullptr);
}

/// Computes y = saturate(round(acc * x_scale * w_scale / y_scale) + y_zero) for rows of `n` int32 sums `acc`.
struct Requantize : IntegerScales {
  DType scale_dtype;
  bool is_signed = false;

  static Requantize bind(const BindContext& c, const IntegerScales& scales) {
    return {scales, c.dtype(kQLinear.x_scale), c.output_dtype(0) == DType::int8};
  }
  static float scale_at(const RunContext& c, int input, DType dtype, int64_t i) {
    if (dtype == DType::float16) return static_cast<float>(c.in<Float16>(input)[i]);
    if (dtype == DType::bfloat16) return static_cast<float>(c.in<BFloat16>(input)[i]);
    return c.in<float>(input)[i];
  }
  float scale(const RunContext& c, const IntegerPlaces& at, int64_t x_line, int64_t w_line) const {
    const float of_x = scale_at(c, at.x_scale, scale_dtype, x.per_line ? x_line : 0),
                of_w = scale_at(c, at.w_scale, scale_dtype, w.per_line ? w_line : 0);
    return of_x * of_w / scale_at(c, at.y_scale, scale_dtype, 0);
  }
  int32_t zero(const RunContext& c, const IntegerPlaces& at) const {
    return is_signed ? static_cast<int32_t>(*c.in<int8_t>(at.y_zero)) : static_cast<int32_t>(*c.in<uint8_t>(at.y_zero));
  }
};

// Matrix products.

void infer_matmul_integer(InferContext& c) { infer_product(c, 0, 1, DType::int32); }
void infer_qlinear_matmul(InferContext& c) { infer_product(c, 0, 3, c.dtype(7)); }

Cost product_cost(const ShapeContext& c, const IntegerPlaces& at) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {2 * outputs * static_cast<double>(c.shape(at.x).back()),
          c.size_bytes(at.x) + c.size_bytes(at.w) + outputs * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}
Cost matmul_integer_cost(const ShapeContext& c) { return product_cost(c, kInteger); }
Cost qlinear_matmul_cost(const ShapeContext& c) { return product_cost(c, kQLinear); }

/// Computes the integer product as int32. MatMulInteger and QLinearMatMul both use it.
struct IntegerProduct : IntegerProductPlan {
  bool a_signed, b_signed;
  int64_t work;

  static std::unique_ptr<PackedState> create(const CreateContext& c, const IntegerPlaces& at) {
    auto state = std::make_unique<PackedBytes>();
    if (!weights_are_constant(c, at)) return state;
    const Tensor b = c.constant(at.w)->contiguous();
    const Shape& shape = b.shape();
    if (shape.rank() < 1 || b.num_elements() == 0 || (shape.rank() > 2 && shape.product(0, shape.rank() - 2) != 1)) return state;
    const int64_t K = shape.rank() == 1 ? shape[0] : shape[shape.rank() - 2], N = shape.rank() == 1 ? 1 : shape.back();
    const Tensor zero = c.has_input(at.w_zero) ? c.constant(at.w_zero)->contiguous() : Tensor();
    const QuantizationLines zeros = zero.defined() ? QuantizationLines::of(zero.shape(), N, 1, shape, "b_zero_point") : QuantizationLines{};
    state->values.resize(static_cast<size_t>(kernels::packed_b_i16_size(K, N)));
    kernels::pack_b_i16(byte_matrix(b.raw(), b.dtype() == DType::int8, zeros, zero.raw()), K, N, N, false, state->values.data());
    drop_mapped_pages(b.raw(), b.size_bytes());
    return state;
  }
  static IntegerProduct bind(BindContext& c, const IntegerPlaces& at, ScratchLayout& layout) {
    IntegerProduct p{IntegerProductPlan::bind(c, at), c.dtype(at.x) == DType::int8, c.dtype(at.w) == DType::int8, 0};
    const bool packed = !c.packed<PackedBytes>().values.empty();
    p.work =
        layout.take(packed ? kernels::gemm_int_packed_scratch_bytes(p.product.shape) : kernels::gemm_int_scratch_bytes(p.product.shape));
    return p;
  }
  void run(RunContext& c, const IntegerPlaces& at, int32_t* y) const {
    const kernels::GemmShape& s = product.shape;
    const ByteMatrix a = byte_matrix(c.in<void>(at.x), a_signed, a_zeros, c.in<void>(at.x_zero), s.M * s.K, s.M);
    const std::vector<int16_t>& packed = c.packed<PackedBytes>().values;
    if (!packed.empty()) {
      const PackedI16 b{product.shape.K, product.shape.N, packed.data()};
      return kernels::gemm_int(product.shape, product.batch, a, b, y, scratch_at(c, work), c.pool());
    }
    const ByteMatrix b = byte_matrix(c.in<void>(at.w), b_signed, b_zeros, c.in<void>(at.w_zero), s.K * s.N, s.N);
    kernels::gemm_int(product.shape, product.batch, a, b, y, scratch_at(c, work), c.pool());
  }
};

struct MatMulInteger {
  IntegerProduct product;
  int64_t count;

  static std::unique_ptr<PackedState> create(const CreateContext& c) { return IntegerProduct::create(c, kInteger); }
  static MatMulInteger bind(BindContext& c) {
    ScratchLayout layout;
    MatMulInteger k{IntegerProduct::bind(c, kInteger, layout), c.output_shape(0).num_elements()};
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (count > 0) product.run(c, kInteger, c.out<int32_t>(0));
  }
};

struct QLinearMatMul {
  IntegerProduct product;
  Requantize requantize;
  int64_t count, accumulators;

  static std::unique_ptr<PackedState> create(const CreateContext& c) { return IntegerProduct::create(c, kQLinear); }
  static QLinearMatMul bind(BindContext& c) {
    ScratchLayout layout;
    const IntegerProduct product = IntegerProduct::bind(c, kQLinear, layout);
    QLinearMatMul k{product, Requantize::bind(c, product.scales(c, kQLinear)), c.output_shape(0).num_elements(), 0};
    const Shape &a = c.shape(0), &b = c.shape(3);
    const int64_t matrices = k.count / std::max<int64_t>(1, product.rows * product.columns);
    for (const auto& [scales, of] : {std::pair(k.requantize.x, &a), std::pair(k.requantize.w, &b)})
      if (scales.per_matrix)
        check_equal(of->product(0, of->rank() - 2), matrices, "matrices with scales of their own, and those of the result");
    k.accumulators = layout.take(static_cast<size_t>(k.count) * sizeof(int32_t));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (count == 0) return;
    auto* sums = reinterpret_cast<int32_t*>(scratch_at(c, accumulators));
    product.run(c, kQLinear, sums);
    const int32_t zero = requantize.zero(c, kQLinear);
    uint8_t* y = c.out<uint8_t>(0);
    const int64_t rows = product.rows, columns = product.columns, run = requantize.w.per_line ? 1 : columns;
    parallel_for(c.pool(), count / run, std::max<int64_t>(1, 16384 / run), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i * run, row = first / columns, matrix = row / rows;
        const float scale = requantize.scale(c, kQLinear, requantize.x.per_matrix ? row : row % rows,
                                             first % columns + (requantize.w.per_matrix ? matrix * columns : 0));
        kernels::requantize(sums + first, run, scale, zero, requantize.is_signed, y + first);
      }
    });
  }
};

// Decomposes a QLinearMatMul of 8-bit floats: as the specification defines it, operands are dequantized, multiplied in float, and
// quantized.
void decompose_float8(Graph& graph, NodeId id) {
  const std::vector<ValueId> in = graph.node(id).inputs;
  const DType a = graph.type(in[0]).dtype, b = graph.type(in[3]).dtype, y = graph.type(in[7]).dtype;
  if (!kFloat8Codes.has(a) && !kFloat8Codes.has(b) && !kFloat8Codes.has(y)) return;
  auto add = [&](NodeSpec spec) { return graph.node(graph.add_node(std::move(spec), id)).outputs[0]; };
  // `axis` is ignored unless the scale is a vector, which has an element per row of a, or per column of b.
  const ValueId lhs = add({.op_type = "DequantizeLinear", .inputs = {in[0], in[1], in[2]}, .attributes = {{"axis", int64_t{-2}}}});
  const ValueId rhs = add({.op_type = "DequantizeLinear", .inputs = {in[3], in[4], in[5]}, .attributes = {{"axis", int64_t{-1}}}});
  const ValueId product = add({.op_type = "MatMul", .inputs = {lhs, rhs}});
  const ValueId result = add({.op_type = "QuantizeLinear", .inputs = {product, in[6], in[7]}});
  graph.replace_uses(graph.node(id).outputs[0], result);
  graph.remove_node(id);
}

// Convolutions.

void infer_conv_integer(InferContext& c) { infer_convolution(c, kConvInteger, DType::int32); }
void infer_qlinear_conv(InferContext& c) { infer_convolution(c, kConvQLinear, c.dtype(7)); }

Cost conv_cost(const ShapeContext& c, const IntegerPlaces& at) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  const Shape& w = c.shape(at.w);
  return {2 * outputs * static_cast<double>(w.product(1, w.rank())),
          c.size_bytes(at.x) + c.size_bytes(at.w) + outputs * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}
Cost conv_integer_cost(const ShapeContext& c) { return conv_cost(c, kInteger); }
Cost qlinear_conv_cost(const ShapeContext& c) { return conv_cost(c, kQLinear); }

struct IntegerConvolution : IntegerConvolutionPlan {
  bool x_signed, w_signed, packed;
  int64_t work, weights;
  int max_threads;

  static std::unique_ptr<PackedState> create(const CreateContext& c, const IntegerPlaces& at) {
    auto state = std::make_unique<PackedBytes>();
    if (!weights_are_constant(c, at)) return state;
    const Tensor w = c.constant(at.w)->contiguous();
    const Shape& shape = w.shape();
    if (shape.rank() < 3 || shape.rank() > 5 || w.num_elements() == 0) return state;
    // The packed layout depends only on the weights and the number of groups.
    kernels::ConvParams params;
    params.group = c.attributes().get_int("group", 1);
    params.M = shape[0], params.C = shape[1] * params.group;
    for (int i = 2; i < shape.rank(); ++i) params.window.kernel[3 - (shape.rank() - i)] = shape[i];
    const Tensor zero = c.has_input(at.w_zero) ? c.constant(at.w_zero)->contiguous() : Tensor();
    const QuantizationLines zeros =
        zero.defined() ? QuantizationLines::of(zero.shape(), shape[0], 0, shape, "w_zero_point") : QuantizationLines{};
    state->values.resize(static_cast<size_t>(kernels::conv_int_weights_size(params)));
    kernels::pack_conv_int_weights(params, byte_matrix(w.raw(), w.dtype() == DType::int8, zeros, zero.raw()), state->values.data());
    drop_mapped_pages(w.raw(), w.size_bytes());
    return state;
  }
  static IntegerConvolution bind(BindContext& c, const IntegerPlaces& at, const ConvolutionInputs& inputs, ScratchLayout& layout) {
    IntegerConvolution k{IntegerConvolutionPlan::bind(c, at, inputs),
                         c.dtype(at.x) == DType::int8,
                         c.dtype(at.w) == DType::int8,
                         !c.packed<PackedBytes>().values.empty(),
                         0,
                         0,
                         c.max_threads()};
    k.work = layout.take(kernels::conv_int_scratch_bytes(k.params, k.max_threads));
    if (!k.packed) k.weights = layout.take(static_cast<size_t>(kernels::conv_int_weights_size(k.params)) * sizeof(int16_t));
    return k;
  }
  void run(RunContext& c, const IntegerPlaces& at, int32_t* y) const {
    const int16_t* filters = c.packed<PackedBytes>().values.data();
    if (!packed) {
      auto* room = reinterpret_cast<int16_t*>(scratch_at(c, weights));
      kernels::pack_conv_int_weights(params, byte_matrix(c.in<void>(at.w), w_signed, w_zeros, c.in<void>(at.w_zero)), room);
      filters = room;
    }
    kernels::conv_int(params, byte_matrix(c.in<void>(at.x), x_signed, x_zeros, c.in<void>(at.x_zero)), filters, y, scratch_at(c, work),
                      max_threads, c.pool());
  }
};

struct ConvInteger {
  IntegerConvolution conv;
  int64_t count;

  static std::unique_ptr<PackedState> create(const CreateContext& c) { return IntegerConvolution::create(c, kInteger); }
  static ConvInteger bind(BindContext& c) {
    ScratchLayout layout;
    ConvInteger k{IntegerConvolution::bind(c, kInteger, kConvInteger, layout), c.output_shape(0).num_elements()};
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (count > 0) conv.run(c, kInteger, c.out<int32_t>(0));
  }
};

struct QLinearConv {
  IntegerConvolution conv;
  Requantize requantize;
  int64_t planes, plane, accumulators;

  static std::unique_ptr<PackedState> create(const CreateContext& c) { return IntegerConvolution::create(c, kQLinear); }
  static QLinearConv bind(BindContext& c) {
    ScratchLayout layout;
    QLinearConv k{IntegerConvolution::bind(c, kQLinear, kConvQLinear, layout), {}, 0, 0, 0};
    k.requantize = Requantize::bind(c, k.conv.scales(c, kQLinear));
    k.planes = k.conv.params.N * k.conv.params.M, k.plane = k.conv.params.window.out_size();
    k.accumulators = layout.take(static_cast<size_t>(k.planes * k.plane) * sizeof(int32_t));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (planes * plane == 0) return;
    auto* sums = reinterpret_cast<int32_t*>(scratch_at(c, accumulators));
    conv.run(c, kQLinear, sums);
    const int32_t zero = requantize.zero(c, kQLinear);
    const int32_t* bias = c.in<int32_t>(kQLinear.bias);
    uint8_t* y = c.out<uint8_t>(0);
    parallel_for(c.pool(), planes, std::max<int64_t>(1, 16384 / plane), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int32_t* row = sums + i * plane;
        const int64_t filter = i % conv.params.M;
        if (bias)
          for (int64_t k = 0; k < plane; ++k) row[k] += bias[filter];
        kernels::requantize(row, plane, requantize.scale(c, kQLinear, 0, filter), zero, requantize.is_signed, y + i * plane);
      }
    });
  }
};

}  // namespace

std::vector<OpDef> quantized_product_ops() {
  constexpr TypeSet kScale{DType::float32}, kScales{DType::float32, DType::float16, DType::bfloat16};
  constexpr TypeSet kCodes = kBytes | kFloat8Codes;
  return {{.name = "MatMulInteger",
           .since = {10},
           .inputs = {{"A", kBytes, "T1"},
                      {"B", kBytes, "T2"},
                      {"a_zero_point", kBytes, "T1", Presence::optional},
                      {"b_zero_point", kBytes, "T2", Presence::optional}},
           .outputs = {{"Y", kInt32}},
           .infer = infer_matmul_integer,
           .cost = matmul_integer_cost,
           .kernels = {kernel<MatMulInteger>()},
           .gradient = gradients::matmul_integer},
          {.name = "ConvInteger",
           .since = {10},
           .inputs = {{"x", kBytes, "T1"},
                      {"w", kBytes, "T2"},
                      {"x_zero_point", kBytes, "T1", Presence::optional},
                      {"w_zero_point", kBytes, "T2", Presence::optional}},
           .outputs = {{"y", kInt32}},
           .attributes = convolution_attributes(),
           .infer = infer_conv_integer,
           .cost = conv_integer_cost,
           .kernels = {kernel<ConvInteger>()},
           .gradient = gradients::conv_integer,
           .decompose = crop_negative_pads,
           .channels_last = {ChannelsLast::How::quantized_convolution, "NhwcConvInteger"}},
          {.name = "QLinearMatMul",
           .since = {10, 21},
           .inputs = {{"a", kCodes, "T1"},
                      {"a_scale", kScales, "TS"},
                      {"a_zero_point", kCodes, "T1"},
                      {"b", kCodes, "T2"},
                      {"b_scale", kScales, "TS"},
                      {"b_zero_point", kCodes, "T2"},
                      {"y_scale", kScales, "TS"},
                      {"y_zero_point", kCodes, "T3"}},
           .outputs = {{"y", kCodes, "T3"}},
           .infer = infer_qlinear_matmul,
           .cost = qlinear_matmul_cost,
           .kernels = {kernel<QLinearMatMul>()},
           .gradient = gradients::qlinear_matmul,
           .decompose = decompose_float8},
          {.name = "QLinearConv",
           .since = {10},
           .inputs = {{"x", kBytes, "T1"},
                      {"x_scale", kScale},
                      {"x_zero_point", kBytes, "T1"},
                      {"w", kBytes, "T2"},
                      {"w_scale", kScale},
                      {"w_zero_point", kBytes, "T2"},
                      {"y_scale", kScale},
                      {"y_zero_point", kBytes, "T3"},
                      {"B", kInt32, "T4", Presence::optional}},
           .outputs = {{"y", kBytes, "T3"}},
           .attributes = convolution_attributes(),
           .infer = infer_qlinear_conv,
           .cost = qlinear_conv_cost,
           .kernels = {kernel<QLinearConv>()},
           .gradient = gradients::qlinear_conv,
           .decompose = crop_negative_pads,
           .channels_last = {ChannelsLast::How::quantized_convolution, "NhwcQLinearConv"}}};
}

}  // namespace treadle::ops
