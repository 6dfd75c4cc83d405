// Implements QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear.
#include "kernels/elementwise/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/decomposition.h"
#include "ops/functions.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/quantization/quantize_gradient.h"
#include "ops/quantization/quantized_axis.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {

QuantizedAxis QuantizedAxis::bind(const BindContext& c) {
  const Shape &x = c.shape(0), &scale = c.shape(1);
  const int64_t scales = scale.num_elements(), block_size = c.get_int("block_size");
  if (c.has_input(2) && c.num_elements(2) != scales)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} zero points for {} scales", c.num_elements(2), scales));
  QuantizedAxis k;
  k.total = x.num_elements();
  if (scale.rank() == 0 || (scales == 1 && scale.rank() == 1)) {
    k.inner = std::max<int64_t>(k.total, 1);
    return k;
  }
  const int axis = normalize_axis(c.get_int("axis", 1), x.rank());
  k.extent = x[axis];
  k.inner = x.product(axis + 1, x.rank());
  if (scale.rank() == 1 && block_size <= 0 && (x.rank() > 1 || scale[0] == k.extent)) {
    if (scale[0] != k.extent)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} scales for an axis of extent {}", scale[0], k.extent));
    k.axis_step = 1;
    return k;
  }
  if (scale.rank() != x.rank())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the scale is of rank {}, not {} or the input's {}", scale.rank(), block_size > 0 ? "0" : "0, 1", x.rank()));
  for (int i = 0; i < x.rank(); ++i)
    if (i != axis && scale[i] != x[i])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the scale {} and the input {} differ beside the axis {}", to_string(scale), to_string(x), axis));
  k.block = block_size > 0 ? block_size : std::max<int64_t>((k.extent + scale[axis] - 1) / std::max<int64_t>(scale[axis], 1), 1);
  if (k.blocks() != scale[axis])
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} scales for an axis of extent {} in blocks of {}", scale[axis], k.extent, k.block));
  k.outer_step = k.blocks() * k.inner, k.axis_step = k.inner, k.inner_step = 1;
  return k;
}

namespace {

constexpr TypeSet kSmallIntegers{DType::int8, DType::uint8, DType::int16, DType::uint16,
                                 DType::int4, DType::uint4, DType::int2,  DType::uint2};
constexpr TypeSet kSmallFloats{DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz,
                               DType::float4e2m1,   DType::float6e2m3,     DType::float6e3m2};
constexpr TypeSet kQuantized = kSmallIntegers | kSmallFloats;
constexpr TypeSet kHalfOrFloat{DType::float32, DType::float16, DType::bfloat16};
constexpr TypeSet kQuantizeScales = kHalfOrFloat | TypeSet{DType::int32, DType::float8e8m0};
constexpr TypeSet kDequantizeScales = kHalfOrFloat | TypeSet{DType::float8e8m0};

/// Number of elements that are converted at a time, in buffers on the stack.
constexpr int64_t kBlock = 256;

using Read = void (*)(const void* src, int64_t first, int64_t n, float* dst);
using Write = void (*)(const float* src, int64_t n, void* dst, int64_t first);

template <typename T>
void read_whole(const void* src, int64_t first, int64_t n, float* dst) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(static_cast<const T*>(src)[first + i]);
}
template <typename P>
void read_packed(const void* src, int64_t first, int64_t n, float* dst) {
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(P::get_packed(src, first + i));
}
template <typename T>
void write_whole(const float* src, int64_t n, void* dst, int64_t first) {
  for (int64_t i = 0; i < n; ++i) static_cast<T*>(dst)[first + i] = static_cast<T>(src[i]);
}
// Converts through int32, because there is one vector instruction for float to int32.
template <typename T>
void write_integer(const float* src, int64_t n, void* dst, int64_t first) {
  for (int64_t i = 0; i < n; ++i) static_cast<T*>(dst)[first + i] = static_cast<T>(static_cast<int32_t>(src[i]));
}
template <typename T, bool kSaturate>
void write_float8(const float* src, int64_t n, void* dst, int64_t first) {
  for (int64_t i = 0; i < n; ++i) static_cast<T*>(dst)[first + i] = T(src[i], kSaturate);
}
template <typename P>
void write_packed(const float* src, int64_t n, void* dst, int64_t first) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<typename P::value_type>)
      P::set_packed(dst, first + i, static_cast<typename P::value_type>(static_cast<int32_t>(src[i])));
    else
      P::set_packed(dst, first + i, typename P::value_type(src[i]));
  }
}

Read reader_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return read_whole<float>;
    case DType::float16: return read_whole<Float16>;
    case DType::bfloat16: return read_whole<BFloat16>;
    case DType::int32: return read_whole<int32_t>;
    case DType::int16: return read_whole<int16_t>;
    case DType::uint16: return read_whole<uint16_t>;
    case DType::int8: return read_whole<int8_t>;
    case DType::uint8: return read_whole<uint8_t>;
    case DType::float8e4m3fn: return read_whole<Float8E4M3FN>;
    case DType::float8e4m3fnuz: return read_whole<Float8E4M3FNUZ>;
    case DType::float8e5m2: return read_whole<Float8E5M2>;
    case DType::float8e5m2fnuz: return read_whole<Float8E5M2FNUZ>;
    case DType::float8e8m0: return read_whole<Float8E8M0>;
    case DType::int4: return read_packed<Int4>;
    case DType::uint4: return read_packed<UInt4>;
    case DType::int2: return read_packed<Int2>;
    case DType::uint2: return read_packed<UInt2>;
    case DType::float4e2m1: return read_packed<PackedFloat4E2M1>;
    case DType::float6e2m3: return read_packed<PackedFloat6E2M3>;
    case DType::float6e3m2: return read_packed<PackedFloat6E3M2>;
    default: throw Error(ErrorCode::not_implemented, fmt::format("quantisation with {}", name_of(dtype)));
  }
}

Write writer_of(DType dtype, bool saturate) {
  switch (dtype) {
    case DType::float32: return write_whole<float>;
    case DType::float16: return write_whole<Float16>;
    case DType::bfloat16: return write_whole<BFloat16>;
    case DType::int16: return write_integer<int16_t>;
    case DType::uint16: return write_integer<uint16_t>;
    case DType::int8: return write_integer<int8_t>;
    case DType::uint8: return write_integer<uint8_t>;
    case DType::float8e4m3fn: return saturate ? write_float8<Float8E4M3FN, true> : write_float8<Float8E4M3FN, false>;
    case DType::float8e4m3fnuz: return saturate ? write_float8<Float8E4M3FNUZ, true> : write_float8<Float8E4M3FNUZ, false>;
    case DType::float8e5m2: return saturate ? write_float8<Float8E5M2, true> : write_float8<Float8E5M2, false>;
    case DType::float8e5m2fnuz: return saturate ? write_float8<Float8E5M2FNUZ, true> : write_float8<Float8E5M2FNUZ, false>;
    case DType::int4: return write_packed<Int4>;
    case DType::uint4: return write_packed<UInt4>;
    case DType::int2: return write_packed<Int2>;
    case DType::uint2: return write_packed<UInt2>;
    case DType::float4e2m1: return write_packed<PackedFloat4E2M1>;
    case DType::float6e2m3: return write_packed<PackedFloat6E2M3>;
    case DType::float6e3m2: return write_packed<PackedFloat6E3M2>;
    default: throw Error(ErrorCode::not_implemented, fmt::format("quantisation to {}", name_of(dtype)));
  }
}

struct Range {
  float lowest, highest;
};
bool integer_range(DType dtype, Range& range) {
  switch (dtype) {
    case DType::int16: range = {-32768, 32767}; break;
    case DType::uint16: range = {0, 65535}; break;
    case DType::int8: range = {-128, 127}; break;
    case DType::uint8: range = {0, 255}; break;
    case DType::int4: range = {-8, 7}; break;
    case DType::uint4: range = {0, 15}; break;
    case DType::int2: range = {-2, 1}; break;
    case DType::uint2: range = {0, 3}; break;
    default: return false;
  }
  return true;
}

// Rounds to the nearest integer, ties to even, for |v| < 2^22. Adding 1.5 * 2^23 gives a number near which floats are 1 apart.
inline float round_small(float v) { return (v + 12582912.0f) - 12582912.0f; }

/// Calls of a function for pieces that share scales or have them at equal distances.
struct Granularity : QuantizedAxis {
  /// Calls fn(first, n, scale index, its stride per element) for pieces of at most kBlock elements that cover [begin, end).
  template <typename Fn>
  void for_each_piece(int64_t begin, int64_t end, Fn&& fn) const {
    while (begin < end) {
      const int64_t in = begin % inner, place = begin / inner % extent, outer = begin / inner / extent;
      const int64_t scale = outer * outer_step + place / block * axis_step + in * inner_step;
      int64_t n, step = inner_step;
      if (inner > 1 || axis_step == 0) {
        n = inner - in;
      } else if (block > 1) {
        n = std::min(block - place % block, extent - place), step = 0;
      } else {
        n = extent - place, step = axis_step;
      }
      n = std::min({n, end - begin, kBlock});
      fn(begin, n, scale, step);
      begin += n;
    }
  }
};

/// Scales and zero points. They are converted to float in scratch memory.
struct Scales {
  Read scale_reader, zero_reader;
  int64_t count, scale_offset, zero_offset;
  bool has_zero;

  static Scales make(const BindContext& c, ScratchLayout& layout) {
    const int64_t count = c.num_elements(1);
    const bool has_zero = c.has_input(2);
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    return {reader_of(c.dtype(1)), has_zero ? reader_of(c.dtype(2)) : nullptr, count,
            layout.take(bytes),    has_zero ? layout.take(bytes) : 0,          has_zero};
  }
  const float* scales(RunContext& c) const {
    auto* dst = reinterpret_cast<float*>(scratch_at(c, scale_offset));
    scale_reader(c.in<void>(1), 0, count, dst);
    return dst;
  }
  const float* zeros(RunContext& c) const {
    if (!has_zero) return nullptr;
    auto* dst = reinterpret_cast<float*>(scratch_at(c, zero_offset));
    zero_reader(c.in<void>(2), 0, count, dst);
    return dst;
  }
};

void infer_quantize(InferContext& c) {
  DType dtype = dtype_attribute(c.attributes(), "output_dtype", DType::undefined);
  if (c.has_input(2) && c.dtype(2) != DType::undefined) {
    if (dtype != DType::undefined && dtype != c.dtype(2))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("output_dtype is {}, the zero point is {}", name_of(dtype), name_of(c.dtype(2))));
    dtype = c.dtype(2);
  }
  if (dtype == DType::undefined && !c.has_input(2)) dtype = DType::uint8;
  if (dtype != DType::undefined && !kQuantized.has(dtype))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is not a type to quantise to", name_of(dtype)));
  Type type = c.input(0);
  type.kind = Type::Kind::tensor;
  type.dtype = dtype;
  c.set_output(0, std::move(type));
}

void infer_dequantize(InferContext& c) {
  DType dtype = dtype_attribute(c.attributes(), "output_dtype", DType::undefined);
  // float8e8m0 can represent only powers of two. It is a dtype for scales, but not for results.
  if (dtype == DType::undefined) dtype = c.dtype(1) == DType::float8e8m0 ? DType::float32 : c.dtype(1);
  Type type = c.input(0);
  type.kind = Type::Kind::tensor;
  type.dtype = dtype;
  c.set_output(0, std::move(type));
}

struct QuantizeLinear {
  Granularity granularity;
  Scales scales;
  Read read;
  Write write;
  Range range;
  bool to_integers;
  DType precision;
  DType bytes = DType::undefined;  // dtype of the codes if the vectorized kernel applies; else undefined

  static QuantizeLinear bind(BindContext& c) {
    ScratchLayout layout;
    QuantizeLinear k{{QuantizedAxis::bind(c)},
                     Scales::make(c, layout),
                     reader_of(c.dtype(0)),
                     writer_of(c.output_dtype(0), c.get_int("saturate", 1) != 0),
                     {},
                     false,
                     DType::float32};
    k.to_integers = integer_range(c.output_dtype(0), k.range);
    k.precision = dtype_attribute(c.node().attributes, "precision", DType::undefined);
    if (k.precision == DType::undefined) k.precision = c.dtype(1);
    const DType codes = c.output_dtype(0);
    if (c.dtype(0) == DType::float32 && k.precision == DType::float32 && (codes == DType::uint8 || codes == DType::int8)) k.bytes = codes;
    c.request_scratch(layout.total());
    return k;
  }
  // Divides by the scales. The attribute `precision` may require that the quotient be rounded to 16 bits.
  void divide(const float* x, const float* scale, int64_t step, int64_t n, float* quotient) const {
    if (step == 0) {
      const float one = *scale;  // a copy, since the quotients might overwrite it
      for (int64_t i = 0; i < n; ++i) quotient[i] = x[i] / one;
    } else {
      for (int64_t i = 0; i < n; ++i) quotient[i] = x[i] / scale[i * step];
    }
    if (precision == DType::float16)
      for (int64_t i = 0; i < n; ++i) quotient[i] = static_cast<float>(Float16(quotient[i]));
    else if (precision == DType::bfloat16)
      for (int64_t i = 0; i < n; ++i) quotient[i] = static_cast<float>(BFloat16(quotient[i]));
  }
  // Clamps before rounding, so that round_small() stays in its range. The bounds are integers, so the result is the same.
  void round(const float* zero, int64_t step, int64_t n, float* quotient) const {
    auto each = [n, quotient, bounds = range](auto zero_of) {
      for (int64_t i = 0; i < n; ++i) {
        const float z = zero_of(i), low = bounds.lowest - z, high = bounds.highest - z;
        float v = quotient[i];
        v = v > low ? v : low;
        v = v < high ? v : high;
        quotient[i] = round_small(v) + z;
      }
    };
    if (!zero || step == 0)  // one zero point: the compiler vectorizes the loop
      each([z = zero ? *zero : 0.0F](int64_t) { return z; });
    else
      each([&](int64_t i) { return zero[i * step]; });
  }
  void run(RunContext& c) const {
    const float *scale = scales.scales(c), *zero = scales.zeros(c);
    const void* x = c.in<void>(0);
    void* y = c.out<void>(0);
    parallel_for(c.pool(), granularity.total, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      float values[kBlock], quotients[kBlock];
      granularity.for_each_piece(begin, end, [&](int64_t first, int64_t n, int64_t s, int64_t step) {
        const float z = zero ? zero[s] : 0;
        if (step == 0 && bytes == DType::uint8)
          return kernels::quantize_bytes(c.in<float>(0) + first, n, scale[s], z, c.out<uint8_t>(0) + first);
        if (step == 0 && bytes == DType::int8)
          return kernels::quantize_bytes(c.in<float>(0) + first, n, scale[s], z, c.out<int8_t>(0) + first);
        read(x, first, n, values);
        divide(values, scale + s, step, n, quotients);
        if (to_integers) {
          round(zero ? zero + s : nullptr, step, n, quotients);
        } else if (zero) {
          for (int64_t i = 0; i < n; ++i) quotients[i] += zero[s + i * step];
        }
        write(quotients, n, y, first);
      });
    });
  }
};

struct DequantizeLinear {
  Granularity granularity;
  Scales scales;
  Read read;
  Write write;
  DType bytes = DType::undefined;  // dtype of the codes if the vectorized kernel applies; else undefined

  static DequantizeLinear bind(BindContext& c) {
    ScratchLayout layout;
    DequantizeLinear k{{QuantizedAxis::bind(c)}, Scales::make(c, layout), reader_of(c.dtype(0)), writer_of(c.output_dtype(0), true)};
    const DType codes = c.dtype(0);
    if (c.output_dtype(0) == DType::float32 && (codes == DType::uint8 || codes == DType::int8)) k.bytes = codes;
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const float *scale = scales.scales(c), *zero = scales.zeros(c);
    const void* x = c.in<void>(0);
    void* y = c.out<void>(0);
    parallel_for(c.pool(), granularity.total, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      float values[kBlock];
      granularity.for_each_piece(begin, end, [&](int64_t first, int64_t n, int64_t s, int64_t step) {
        const float factor = scale[s], z = zero ? zero[s] : 0;
        if (step == 0 && bytes == DType::uint8)
          return kernels::dequantize_bytes(c.in<uint8_t>(0) + first, n, factor, z, c.out<float>(0) + first);
        if (step == 0 && bytes == DType::int8)
          return kernels::dequantize_bytes(c.in<int8_t>(0) + first, n, factor, z, c.out<float>(0) + first);
        read(x, first, n, values);
        if (step == 0) {
          for (int64_t i = 0; i < n; ++i) values[i] = (values[i] - z) * factor;
        } else {
          for (int64_t i = 0; i < n; ++i) values[i] = (values[i] - (zero ? zero[s + i * step] : 0)) * scale[s + i * step];
        }
        write(values, n, y, first);
      });
    });
  }
};

void infer_dynamic(InferContext& c) {
  Type type = c.input(0);
  type.kind = Type::Kind::tensor;
  type.dtype = DType::uint8;
  c.set_output(0, std::move(type));
  c.set_output(1, DType::float32, {});
  c.set_output(2, DType::uint8, {});
}

struct DynamicQuantizeLinear {
  int64_t n;
  bool has_scale, has_zero;
  static DynamicQuantizeLinear bind(BindContext& c) { return {c.num_elements(0), c.has_output(1), c.has_output(2)}; }
  void run(RunContext& c) const {
    const float* x = c.in<float>(0);
    // The range of the codes must include 0, so that 0 is represented exactly.
    const auto [low, high] = kernels::range_around_zero(x, n);
    // If all elements are 0, every finite scale is right.
    const float scale = high == low ? 1.0f : (high - low) / 255.0f;
    const float exact = -low / scale;  // NaN if the range is infinite
    const float zero = std::isnan(exact) ? 0.0f : std::nearbyint(std::clamp(exact, 0.0f, 255.0f));
    uint8_t* y = c.out<uint8_t>(0);
    parallel_for(c.pool(), n, kElementwiseGrain,
                 [&](int64_t begin, int64_t end) { kernels::quantize_bytes(x + begin, end - begin, scale, zero, y + begin); });
    if (has_scale) *c.out<float>(1) = scale;
    if (has_zero) *c.out<uint8_t>(2) = static_cast<uint8_t>(zero);
  }
};

// DynamicQuantizeLinear accepts only float32. Tools that convert models to 16-bit floats leave it between 16-bit values, so a Cast is
// added.
void widen_dynamic(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  if (d.type(d.in(0)).dtype == DType::float32 || d.type(d.in(0)).dtype == DType::undefined) return;
  auto outputs = d.op_n("DynamicQuantizeLinear", {d.cast(d.in(0), DType::float32)}, 3);
  for (size_t i = 0; i < 3; ++i) d.give(i, outputs[i]);
  d.finish();
}

bool is_byte(DType dtype) { return dtype == DType::uint8 || dtype == DType::int8; }

/// Returns the node as a step of a pointwise chain, if scale and zero point are single numbers. An absent zero point is 0.
std::optional<PointwiseStep> by_one_scale(const Graph& graph, const Node& node) {
  if (dtype_of_value(graph, node.inputs[1]) != DType::float32 || !has_one_element(graph, node.inputs[1])) return std::nullopt;
  const ValueId zero = node.has_input(2) ? node.inputs[2] : kNoValue;
  if (zero != kNoValue && (!has_one_element(graph, zero) || !is_byte(dtype_of_value(graph, zero)))) return std::nullopt;
  return PointwiseStep{{.op_type = node.op_type, .operands = {}, .attributes = {}}, {node.inputs[0], node.inputs[1], zero}};
}
std::optional<PointwiseStep> quantize_step(const Graph& graph, const Node& node) {
  const DType to = dtype_of_value(graph, node.outputs[0]);
  if (dtype_of_value(graph, node.inputs[0]) != DType::float32 || !is_byte(to) || node.attributes.get_int("precision") != 0)
    return std::nullopt;
  std::optional<PointwiseStep> step = by_one_scale(graph, node);
  if (step && to == DType::int8) step->step.attributes = {{"low", -128.0F}, {"high", 127.0F}};
  return step;
}
std::optional<PointwiseStep> dequantize_step(const Graph& graph, const Node& node) {
  if (!is_byte(dtype_of_value(graph, node.inputs[0])) || dtype_of_value(graph, node.outputs[0]) != DType::float32) return std::nullopt;
  return by_one_scale(graph, node);
}

}  // namespace

std::vector<OpDef> quantize_ops() {
  return {
      {.name = "QuantizeLinear",
       .since = {10, 13, 19, 21, 23, 24, 25, 28},
       .inputs = {{"x", kHalfOrFloat | TypeSet{DType::int32}, "T1"},
                  {"y_scale", kQuantizeScales, "T2"},
                  {"y_zero_point", kQuantized, "T3", Presence::optional}},
       .outputs = {{"y", kQuantized, "T3"}},
       .attributes = {{"axis", int64_t{1}},
                      {"block_size", int64_t{0}, at_least(0)},
                      {"output_dtype", int64_t{0}},
                      {"precision", int64_t{0}},
                      {"saturate", int64_t{1}}},
       .infer = infer_quantize,
       .cost = elementwise_cost<4>,
       .kernels = {kernel<QuantizeLinear>()},
       .gradient = gradients::quantize,
       .quantization = Quantization::quantizes,
       .channels_last = {ChannelsLast::How::first_operand},
       .step = quantize_step},
      {.name = "DequantizeLinear",
       .since = {10, 13, 19, 21, 23, 24, 25, 28},
       .inputs = {{"x", kQuantized | TypeSet{DType::int32}, "T1"},
                  {"x_scale", kDequantizeScales, "T2"},
                  {"x_zero_point", kQuantized | TypeSet{DType::int32}, "T1", Presence::optional}},
       .outputs = {{"y", kHalfOrFloat, "T3"}},
       .attributes = {{"axis", int64_t{1}}, {"block_size", int64_t{0}, at_least(0)}, {"output_dtype", int64_t{0}}},
       .infer = infer_dequantize,
       .cost = elementwise_cost<2>,
       .kernels = {kernel<DequantizeLinear>()},
       .gradient = gradients::dequantize,
       .quantization = Quantization::dequantizes,
       .channels_last = {ChannelsLast::How::first_operand},
       .step = dequantize_step},
      {.name = "DynamicQuantizeLinear",
       .since = {11},
       .inputs = {{"x", kHalfOrFloat, "T1"}},
       .outputs = {{"y", TypeSet{DType::uint8}, "T2"}, {"y_scale", TypeSet{DType::float32}}, {"y_zero_point", TypeSet{DType::uint8}, "T2"}},
       .infer = infer_dynamic,
       .cost = elementwise_cost<5>,
       .kernels = {kernel<DynamicQuantizeLinear>("plain", DType::float32)},
       .gradient = gradients::dynamic_quantize,
       .decompose = widen_dynamic,
       .quantization = Quantization::quantizes,
       .channels_last = {ChannelsLast::How::first_operand}}};
}

}  // namespace treadle::ops
