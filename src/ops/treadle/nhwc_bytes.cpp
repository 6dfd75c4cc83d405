// Implements 8-bit operators of the treadle domain on images with channels last, X[N, spatial..., C]. The layout pass replaces QLinearConv,
// ConvInteger and MaxPool by them. ByteTable applies a function of one byte. Weights stay in ONNX's order; the kernels pack them.
#include "kernels/conv/nhwc_bytes.h"

#include <fmt/format.h>

#include <vector>

#include "core/files/file.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/nn/convolution.h"
#include "ops/nn/window.h"
#include "ops/packed_parts.h"
#include "ops/treadle/nhwc.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kBytes{DType::int8, DType::uint8}, kFloat32{DType::float32};
// Allowed values of the attribute `dtype`. undefined means the dtype of the operands.
constexpr TypeSet kBytesOrNone{DType::undefined, DType::int8, DType::uint8};

DType result_type(const InferContext& c, DType otherwise) {
  const int64_t asked = c.get_int("dtype");
  return asked == 0 ? otherwise : static_cast<DType>(asked);
}

/// Infers the extents of the output. @param weights  index of the input with the weights
SymbolicShape infer_extents(InferContext& c, int weights) {
  for (int i : {0, weights})
    if (!c.has_rank(i) || c.rank(i) < 3 || c.rank(i) > 4)
      throw Error(ErrorCode::invalid_argument, "the image has a batch, one or two spatial axes, and channels");
  const SymbolicShape &x = c.shape(0), &w = c.shape(weights);
  if (x.size() != w.size()) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {} and W of rank {}", x.size(), w.size()));
  check_groups(c, x.back(), w);
  SymbolicShape out = infer_window(c.attributes(), inner(x), spatial(w));
  out.insert(out.begin(), x[0]);
  out.push_back(w[0]);
  return out;
}
void infer_conv(InferContext& c) {
  constexpr int kYZero = 7, kTotalZero = 14;
  c.set_output(0, result_type(c, c.dtype(c.has_input(kTotalZero) ? kTotalZero : kYZero)), infer_extents(c, 3));
}
void infer_conv_integer(InferContext& c) { c.set_output(0, DType::int32, infer_extents(c, 1)); }

template <int kWeights, int kResultBytes>
Cost conv_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  const Shape& w = c.shape(kWeights);
  return {2 * outputs * static_cast<double>(w.product(1, w.rank())), c.size_bytes(0) + c.size_bytes(kWeights) + kResultBytes * outputs};
}

int32_t byte_at(const void* data, bool is_signed) {
  if (data == nullptr) return 0;
  return is_signed ? int32_t{*static_cast<const int8_t*>(data)} : int32_t{*static_cast<const uint8_t*>(data)};
}

/// Packs the weights, for both convolutions of this file.
template <int kWeights>
struct ByteWeights {
  static constexpr uint32_t packs = 1U << kWeights;

  static std::string declines(const CreateContext& c) {
    const Tensor* w = c.stored(kWeights);
    if (!w || w->dtype() != DType::int8 || w->num_elements() == 0) return "W is not constant, or not int8";
    return kernels::has_nhwc_bytes(params_of(c)) ? "" : "groups of several channels or filters";
  }
  static kernels::ConvParams params_of(const CreateContext& c) {
    const Shape& w = c.stored(kWeights)->shape();
    kernels::ConvParams p;
    p.group = c.attributes().get_int("group", 1);
    p.M = w[0], p.C = w[1] * p.group;
    for (int i = 2; i < w.rank(); ++i) p.window.kernel[3 - (w.rank() - i)] = w[i];
    return p;
  }
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const kernels::ConvParams p = params_of(c);
    const Tensor w = c.stored(kWeights)->contiguous();
    auto state = std::make_unique<BytesWithSums>();
    state->allocate(kernels::nhwc_bytes_packed_size(p), p.M);
    kernels::nhwc_bytes_pack(p, reinterpret_cast<const int8_t*>(w.raw()), state->weights.data<int8_t>(), state->sums.data<int32_t>());
    drop_mapped_pages(w.raw(), w.size_bytes());
    return state;
  }
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    const kernels::ConvParams p = params_of(c);
    return BytesWithSums::restore(parts, kernels::nhwc_bytes_packed_size(p), p.M);
  }
  static kernels::ConvParams bind_params(const BindContext& c) {
    const Shape &x = c.shape(0), &w = c.shape(kWeights);
    kernels::ConvParams p;
    p.N = x[0], p.C = x[x.rank() - 1], p.M = w[0], p.group = c.get_int("group", 1);
    p.window = bind_window(c.node().attributes, inner(x), inner(c.output_shape(0)), spatial(w));
    kernels::check_conv(p);
    check_equal(w[1] * p.group, p.C, "channels of W, times group, and of X");
    return p;
  }
};

// Computes QLinearConv, then Quantize(Dequantize(y) + Dequantize(residual)) by total_scale if it has a residual, then an optional table
// that maps the result's bytes to bytes of dtype `dtype`.
struct NhwcQLinearConv : ByteWeights<3> {
  kernels::ConvParams params;
  bool x_signed, y_signed, scale_per_filter, has_residual, residual_signed, total_signed;
  int64_t scales, work;
  int max_threads;
  enum : int { kTable = 9, kResidual, kResidualScale, kResidualZero, kTotalScale, kTotalZero };

  static NhwcQLinearConv bind(BindContext& c) {
    NhwcQLinearConv k;
    const kernels::ConvParams& p = k.params = bind_params(c);
    for (int i : {1, 2, 6, 7}) check_equal(c.num_elements(i), 1, "scales and zero points of X and of Y");
    k.scale_per_filter = c.num_elements(4) != 1;
    if (k.scale_per_filter) check_equal(c.num_elements(4), p.M, "scales and filters of W");
    if (c.has_input(8)) check_equal(c.num_elements(8), p.M, "B and the filters of W");
    if (c.has_input(kTable)) check_equal(c.num_elements(kTable), 256, "elements of the table");
    bind_residual(c, k);
    k.x_signed = c.dtype(0) == DType::int8, k.y_signed = c.dtype(7) == DType::int8;
    k.max_threads = c.max_threads();
    ScratchLayout layout;
    k.scales = layout.take(static_cast<size_t>(p.M) * sizeof(float));
    k.work = layout.take(kernels::nhwc_bytes_scratch_bytes(p, k.max_threads));
    c.request_scratch(layout.total());
    return k;
  }
  static void bind_residual(const BindContext& c, NhwcQLinearConv& k) {
    k.has_residual = c.has_input(kResidual);
    for (int i = kResidualScale; i <= kTotalZero; ++i) {
      if (c.has_input(i) != k.has_residual) throw Error(ErrorCode::invalid_argument, "a residual and its scales belong together");
      if (k.has_residual) check_equal(c.num_elements(i), 1, "scales and zero points of the residual and of the total");
    }
    if (!k.has_residual) return;
    if (c.shape(kResidual) != c.output_shape(0) || c.dtype(kResidual) != c.dtype(kResidualZero))
      throw Error(ErrorCode::invalid_argument, "the residual has not the result's shape, or not its zero point's type");
    k.residual_signed = c.dtype(kResidual) == DType::int8, k.total_signed = c.dtype(kTotalZero) == DType::int8;
  }
  void run(RunContext& c) const {
    auto* factors = reinterpret_cast<float*>(scratch_at(c, scales));
    const float x_scale = *c.in<float>(1), y_scale = *c.in<float>(6);
    for (int64_t m = 0; m < params.M; ++m) factors[m] = x_scale * c.in<float>(4)[scale_per_filter ? m : 0] / y_scale;
    kernels::ByteConv conv;
    conv.x = c.in<void>(0), conv.x_signed = x_signed, conv.x_zero = byte_at(c.in<void>(2), x_signed);
    conv.y_signed = y_signed, conv.y_zero = byte_at(c.in<void>(7), y_signed);
    conv.scales = factors, conv.bias = c.in<int32_t>(8), conv.table = c.in<uint8_t>(kTable);
    kernels::ByteAddition addition;
    if (has_residual) {
      const float total_scale = *c.in<float>(kTotalScale);
      addition.factor = y_scale / total_scale, addition.zero = byte_at(c.in<void>(kTotalZero), total_signed);
      addition.residual = c.in<uint8_t>(kResidual), addition.residual_factor = *c.in<float>(kResidualScale) / total_scale;
      addition.residual_signed = residual_signed, addition.residual_zero = byte_at(c.in<void>(kResidualZero), residual_signed);
      addition.is_signed = total_signed;
      conv.additions = &addition, conv.num_additions = 1;
    }
    const auto& packed = c.packed<BytesWithSums>();
    kernels::nhwc_bytes(params, conv, packed.weights.data<int8_t>(), packed.sums.data<int32_t>(), c.out<void>(0), scratch_at(c, work),
                        max_threads, c.pool());
  }
};

// Computes ConvInteger. It has the same operands as ONNX's operator.
struct NhwcConvInteger : ByteWeights<1> {
  kernels::ConvParams params;
  bool x_signed;
  int max_threads;

  static NhwcConvInteger bind(BindContext& c) {
    NhwcConvInteger k;
    k.params = bind_params(c);
    if (c.has_input(2)) check_equal(c.num_elements(2), 1, "zero points of X");
    k.x_signed = c.dtype(0) == DType::int8;
    k.max_threads = c.max_threads();
    c.request_scratch(kernels::nhwc_bytes_scratch_bytes(k.params, k.max_threads));
    return k;
  }
  void run(RunContext& c) const {
    kernels::ByteConv conv;
    conv.x = c.in<void>(0), conv.x_signed = x_signed, conv.x_zero = byte_at(c.in<void>(2), x_signed);
    conv.sums_only = true;
    const auto& packed = c.packed<BytesWithSums>();
    kernels::nhwc_bytes(params, conv, packed.weights.data<int8_t>(), packed.sums.data<int32_t>(), c.out<void>(0), c.scratch<void>(),
                        max_threads, c.pool());
  }
};

void infer_table(InferContext& c) {
  Type type = c.input(0);
  type.kind = Type::Kind::tensor;
  type.dtype = result_type(c, c.dtype(0));
  c.set_output(0, std::move(type));
}

// Computes y[i] = table[x[i]], where the bits of the byte x[i] are the index.
struct ByteTable {
  int64_t count;

  static ByteTable bind(BindContext& c) {
    check_equal(c.num_elements(1), 256, "elements of the table");
    return {c.num_elements(0)};
  }
  void run(RunContext& c) const { kernels::map_bytes(count, c.in<uint8_t>(1), c.in<uint8_t>(0), c.out<uint8_t>(0), c.pool()); }
};
Cost table_cost(const ShapeContext& c) { return {static_cast<double>(c.num_elements(0)), 2 * c.size_bytes(0)}; }

void infer_pool(InferContext& c) {
  if (!c.has_rank(0) || c.rank(0) < 3 || c.rank(0) > 4)
    throw Error(ErrorCode::invalid_argument, "the image has a batch, one or two spatial axes, and channels");
  const std::vector<int64_t>& kernel = c.get_ints("kernel_shape");
  SymbolicShape out = infer_window(c.attributes(), inner(c.shape(0)), {kernel.begin(), kernel.end()});
  out.insert(out.begin(), c.shape(0).front());
  out.push_back(c.shape(0).back());
  c.set_output(0, c.dtype(0), std::move(out));
}
Cost pool_cost(const ShapeContext& c) {
  return {static_cast<double>(c.num_elements(0)), c.size_bytes(0) + static_cast<double>(c.output_shape(0).num_elements())};
}

struct NhwcByteMaxPool {
  kernels::Window window;
  int64_t N, C;
  bool is_signed;

  static NhwcByteMaxPool bind(BindContext& c) {
    const Shape& x = c.shape(0);
    return {bind_window(c.node().attributes, inner(x), inner(c.output_shape(0)), c.get_ints("kernel_shape")), x[0], x[x.rank() - 1],
            c.dtype(0) == DType::int8};
  }
  void run(RunContext& c) const { kernels::max_pool_bytes(window, N, C, is_signed, c.in<void>(0), c.out<void>(0), c.pool()); }
};

}  // namespace

std::vector<OpDef> nhwc_bytes_ops() {
  const std::vector<AttributeDef> conv = convolution_attributes({{"dtype", int64_t{0}, dtype_among(kBytesOrNone)}});
  return {{.name = "NhwcQLinearConv",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"x", kBytes},
                      {"x_scale", kFloat32},
                      {"x_zero_point", kBytes},
                      {"w", TypeSet{DType::int8}},
                      {"w_scale", kFloat32},
                      {"w_zero_point", TypeSet{DType::int8}},
                      {"y_scale", kFloat32},
                      {"y_zero_point", kBytes},
                      {"B", TypeSet{DType::int32}, "", Presence::optional},
                      {"table", TypeSet{DType::uint8}, "", Presence::optional},
                      {"residual", kBytes, "", Presence::optional},
                      {"residual_scale", kFloat32, "", Presence::optional},
                      {"residual_zero_point", kBytes, "", Presence::optional},
                      {"total_scale", kFloat32, "", Presence::optional},
                      {"total_zero_point", kBytes, "", Presence::optional}},
           .outputs = {{"y", kBytes}},
           .attributes = conv,
           .infer = infer_conv,
           .cost = conv_cost<3, 1>,
           .kernels = {kernel<NhwcQLinearConv>("nhwc")}},
          {.name = "NhwcConvInteger",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"x", kBytes},
                      {"w", TypeSet{DType::int8}},
                      {"x_zero_point", kBytes, "", Presence::optional},
                      {"w_zero_point", TypeSet{DType::int8}, "", Presence::optional}},
           .outputs = {{"y", TypeSet{DType::int32}}},
           .attributes = conv,
           .infer = infer_conv_integer,
           .cost = conv_cost<1, 4>,
           .kernels = {kernel<NhwcConvInteger>("nhwc")}},
          {.name = "NhwcByteMaxPool",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kBytes}},
           .outputs = {{"Y", kBytes}},
           .attributes = window_attributes({{"ceil_mode", int64_t{0}}}),
           .infer = infer_pool,
           .cost = pool_cost,
           .kernels = {kernel<NhwcByteMaxPool>("nhwc")}},
          {.name = "ByteTable",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kBytes}, {"table", TypeSet{DType::uint8}}},
           .outputs = {{"Y", kBytes}},
           .attributes = {{"dtype", int64_t{0}, dtype_among(kBytesOrNone)}},
           .infer = infer_table,
           .cost = table_cost,
           .alias = {may_reuse(0, 0)},
           .kernels = {kernel<ByteTable>()},
           .channels_last = {ChannelsLast::How::first_operand}}};
}

}  // namespace treadle::ops
