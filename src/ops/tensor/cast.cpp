// Implements Cast, CastLike (ONNX, opset 28) and BitCast, for all pairs of types, including narrow floats, packed integers and strings.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "core/base/to_integer.h"
#include "core/values/dispatch.h"
#include "graph/op_def.h"
#include "kernels/elementwise/compare.h"
#include "kernels/elementwise/convert.h"
#include "ops/decomposition.h"
#include "ops/functions.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Functions that convert one element.

template <typename To, typename From>
To convert(From x) {
  using Wide = compute_type_t<From>;
  if constexpr (std::is_same_v<To, bool>) {
    return static_cast<Wide>(x) != Wide{0};
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<Wide>) {
    auto value = static_cast<Wide>(x);
    constexpr Wide kTop = static_cast<Wide>(9223372036854775808.0);
    if (std::is_same_v<To, uint64_t> && value >= kTop)
      return static_cast<To>(static_cast<uint64_t>(to_integer<int64_t>(value - kTop)) + (uint64_t{1} << 63));
    return static_cast<To>(to_integer<int64_t>(value));  // keeps only the low bits
  } else {
    return static_cast<To>(static_cast<Wide>(x));
  }
}

template <typename From, typename To>
void convert_all(const void* in, void* out, int64_t begin, int64_t end) {
  const From* from = static_cast<const From*>(in);
  To* to = static_cast<To*>(out);
  constexpr bool kWidens = std::is_same_v<To, float> && (std::is_same_v<From, Float16> || std::is_same_v<From, BFloat16>);
  constexpr bool kNarrows = std::is_same_v<From, float> && (std::is_same_v<To, Float16> || std::is_same_v<To, BFloat16>);
  if constexpr (kWidens) return kernels::widen(from + begin, to + begin, end - begin);
  if constexpr (kNarrows) return kernels::narrow(from + begin, to + begin, end - begin);
  if constexpr (std::is_same_v<From, float> && (std::is_same_v<To, uint8_t> || std::is_same_v<To, int8_t>))
    return kernels::narrow(from + begin, reinterpret_cast<uint8_t*>(to) + begin, end - begin);
  if constexpr (std::is_same_v<From, int64_t> && std::is_same_v<To, float>) return kernels::to_float(from + begin, to + begin, end - begin);
  if constexpr (std::is_same_v<From, float> && std::is_same_v<To, int64_t>) return kernels::to_int64(from + begin, to + begin, end - begin);
  if constexpr ((std::is_same_v<From, int64_t> || std::is_same_v<From, float>)&&std::is_same_v<To, bool>)
    return kernels::nonzero(from + begin, to + begin, end - begin);
  TREADLE_ELEMENTWISE_LOOP
  for (int64_t i = begin; i < end; ++i) to[i] = convert<To>(from[i]);
}

using ConvertAll = void (*)(const void* in, void* out, int64_t begin, int64_t end);

// Pairs of types that are common in models have a loop of their own. Other pairs are converted in two steps, through blocks of double or
// int64.

template <typename From, typename... Tos>
ConvertAll direct_to(DType to, TypeList<Tos...>) {
  ConvertAll found = nullptr;
  ((to == dtype_of<Tos> ? (void)(found = convert_all<From, Tos>) : (void)0), ...);
  return found;
}

ConvertAll direct_conversion(DType from, DType to) {
  switch (from) {
    case DType::float32: return direct_to<float>(to, TypeList<Float16, BFloat16, double, int64_t, int32_t, bool, uint8_t, int8_t>{});
    case DType::float16: return direct_to<Float16>(to, TypeList<float, int64_t, int32_t, bool>{});
    case DType::bfloat16: return direct_to<BFloat16>(to, TypeList<float, int64_t, int32_t, bool>{});
    case DType::float64: return direct_to<double>(to, TypeList<float, int64_t, int32_t, bool>{});
    case DType::int64: return direct_to<int64_t>(to, TypeList<float, double, int32_t, bool>{});
    case DType::int32: return direct_to<int32_t>(to, TypeList<float, double, int64_t, bool>{});
    case DType::uint8: return direct_to<uint8_t>(to, TypeList<float, int64_t, int32_t>{});
    case DType::int8: return direct_to<int8_t>(to, TypeList<float, int64_t, int32_t>{});
    // Booleans are converted as bytes, so that the compiler vectorizes the loop.
    case DType::boolean: return direct_to<uint8_t>(to, TypeList<float, int64_t, int32_t, uint8_t, Float16>{});
    case DType::uint64: return direct_to<uint64_t>(to, TypeList<float, double>{});
    default: return nullptr;
  }
}

using ByteTypes = concat_t<concat_t<NumericTypes, Float8Types>, TypeList<bool>>;

/// Calls visit(T{}) for the packed type of a dtype. @return false if elements are not packed
template <typename Visit>
bool visit_packed(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::int4: return visit(Int4{}), true;
    case DType::uint4: return visit(UInt4{}), true;
    case DType::int2: return visit(Int2{}), true;
    case DType::uint2: return visit(UInt2{}), true;
    case DType::float4e2m1: return visit(PackedFloat4E2M1{}), true;
    case DType::float6e2m3: return visit(PackedFloat6E2M3{}), true;
    case DType::float6e3m2: return visit(PackedFloat6E3M2{}), true;
    default: return false;
  }
}

template <typename Wide>
void load(DType dtype, const void* in, int64_t first, Wide* out, int64_t n) {
  auto packed = [&]<typename P>(P) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Wide>(P::get_packed(in, first + i));
  };
  if (visit_packed(dtype, packed)) return;
  visit_dtype<ByteTypes>(dtype, [&]<typename T>() {
    const T* from = static_cast<const T*>(in) + first;
    for (int64_t i = 0; i < n; ++i) out[i] = convert<Wide>(from[i]);
  });
}

struct Narrowing {
  bool saturate;
  ScaleRounding rounding;
};

template <typename Wide>
void store(DType dtype, const Wide* in, void* out, int64_t first, int64_t n, Narrowing narrowing) {
  auto packed = [&]<typename P>(P) {
    // Clears the bytes, because the last one may have unused bits.
    auto* bytes = static_cast<uint8_t*>(out) + first * P::kBits / 8;
    std::memset(bytes, 0, static_cast<size_t>((n * P::kBits + 7) / 8));
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (!std::is_integral_v<typename P::value_type>)
        P::set_packed(out, first + i, typename P::value_type(in[i]));
      else if constexpr (std::is_floating_point_v<Wide>)  // rounds as onnxruntime does; other integers truncate
        P::set_packed(out, first + i, static_cast<typename P::value_type>(convert<int64_t>(std::round(in[i]))));
      else
        P::set_packed(out, first + i, static_cast<typename P::value_type>(convert<int64_t>(in[i])));
    }
  };
  if (visit_packed(dtype, packed)) return;
  visit_dtype<ByteTypes>(dtype, [&]<typename T>() {
    T* to = static_cast<T*>(out) + first;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (std::is_same_v<T, Float8E8M0>)
        to[i] = T(in[i], narrowing.saturate, narrowing.rounding);
      else if constexpr (requires { T(in[i], true); })
        to[i] = T(in[i], narrowing.saturate);
      else
        to[i] = convert<T>(in[i]);
    }
  });
}

template <typename Wide>
void convert_by_blocks(DType from, DType to, const void* in, void* out, int64_t begin, int64_t end, Narrowing narrowing) {
  constexpr int64_t kBlock = 256;
  Wide block[kBlock];
  for (int64_t first = begin; first < end; first += kBlock) {
    int64_t n = std::min(kBlock, end - first);
    load(from, in, first, block, n);
    store(to, block, out, first, n, narrowing);
  }
}

// Strings.

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

[[noreturn]] void throw_not_a_number(std::string_view text, DType to) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the string \"{}\" is no number that {} can hold", text.substr(0, 100), name_of(to)));
}

/// Parses a number. from_chars() accepts "inf", "infinity" and "nan" in any case, but no leading plus, so the plus is skipped.
template <typename T>
bool parse(std::string_view text, T& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() && !text.empty();
}

template <typename Wide>
Wide from_string(const std::string& string, DType to) {
  std::string_view text = trim(string);
  if constexpr (std::is_integral_v<Wide>) {
    Wide integer;
    if (parse(text, integer)) return integer;
  }
  double number;
  if (!parse(text, number)) {
    if (to == DType::boolean && (text == "True" || text == "true")) return Wide{1};
    if (to == DType::boolean && (text == "False" || text == "false")) return Wide{0};
    throw_not_a_number(string, to);
  }
  return convert<Wide>(number);
}

/// ONNX only defines the text for infinities and NaN. Other numbers are printed with eight digits, as in onnxruntime.
std::string float_to_string(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-INF" : "INF";
  return fmt::format("{:.8g}", value);
}

void to_strings(DType from, const void* in, std::string* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (is_float(from)) {
      double value;
      load(from, in, i, &value, 1);
      out[i] = float_to_string(value);
    } else if (from == DType::uint64) {
      out[i] = std::to_string(static_cast<const uint64_t*>(in)[i]);
    } else {
      int64_t value;
      load(from, in, i, &value, 1);
      out[i] = std::to_string(value);
    }
  }
}

void from_strings(const std::string* in, DType to, void* out, int64_t n, Narrowing narrowing) {
  constexpr int64_t kBlock = 256;
  auto by_blocks = [&]<typename Wide>(Wide) {
    Wide block[kBlock];
    for (int64_t first = 0; first < n; first += kBlock) {
      int64_t count = std::min(kBlock, n - first);
      for (int64_t i = 0; i < count; ++i) block[i] = from_string<Wide>(in[first + i], to);
      store(to, block, out, first, count, narrowing);
    }
  };
  if (to == DType::uint64) {
    for (int64_t i = 0; i < n; ++i) static_cast<uint64_t*>(out)[i] = from_string<uint64_t>(in[i], to);
  } else if (to == DType::float32) {  // parsed as float, so that it is rounded only once
    for (int64_t i = 0; i < n; ++i) {
      float value;
      if (!parse(trim(in[i]), value)) value = static_cast<float>(from_string<double>(in[i], to));
      static_cast<float*>(out)[i] = value;
    }
  } else if (is_float(to) || to == DType::boolean) {
    by_blocks(double{});
  } else {
    by_blocks(int64_t{});
  }
}

// The operators.

struct CastKernel {
  int64_t n;
  DType from, to;
  Narrowing narrowing;
  ConvertAll direct;

  static CastKernel bind(BindContext& c) {
    std::string_view mode = c.get_string("round_mode", "up");
    if (mode != "up" && mode != "down" && mode != "nearest")
      throw Error(ErrorCode::invalid_model, fmt::format("round_mode = \"{}\"; it must be up, down or nearest", mode));
    ScaleRounding rounding = mode == "up" ? ScaleRounding::up : mode == "down" ? ScaleRounding::down : ScaleRounding::nearest;
    DType from = c.dtype(0), to = c.output_dtype(0);
    return {c.num_elements(0), from, to, {c.get_int("saturate", 1) != 0, rounding}, direct_conversion(from, to)};
  }

  void run(RunContext& c) const {
    const void* in = c.in<void>(0);
    void* out = c.out<void>(0);
    if (from == DType::string && to == DType::string) {
      std::copy_n(static_cast<const std::string*>(in), n, static_cast<std::string*>(out));
    } else if (to == DType::string) {
      to_strings(from, in, static_cast<std::string*>(out), n);
    } else if (from == DType::string) {
      from_strings(static_cast<const std::string*>(in), to, out, n, narrowing);
    } else if (from == to) {
      if (n > 0) std::memmove(out, in, size_bytes(to, n));
    } else {
      parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
        if (direct) return direct(in, out, begin, end);
        bool through_double = is_float(from) || (from == DType::uint64 && is_float(to));
        if (through_double)
          convert_by_blocks<double>(from, to, in, out, begin, end, narrowing);
        else
          convert_by_blocks<int64_t>(from, to, in, out, begin, end, narrowing);
      });
    }
  }
};

void infer_to(InferContext& c, DType to) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, to);
  c.set_output(0, to, c.shape(0));
  auto values = c.known(0);
  bool keeps_value = to == DType::int64 || to == DType::int32 || to == DType::float32 || to == DType::float64;
  if (!values || !(keeps_value || to == DType::boolean)) return;
  if (to == DType::boolean)
    for (Dim& value : *values) {
      if (!value.is_const()) return;
      value = Dim(value.value() != 0 ? 1 : 0);
    }
  c.set_known(0, std::move(*values));
}

void infer_cast(InferContext& c) {
  int64_t to = c.get_int("to");
  if (to <= 0 || to >= kNumDTypes)
    throw Error(ErrorCode::not_implemented, fmt::format("to = {} is no element type of this build (1 to {})", to, kNumDTypes - 1));
  infer_to(c, static_cast<DType>(to));
}

void infer_cast_like(InferContext& c) {
  DType to = c.dtype(1);
  if (to != DType::undefined)
    infer_to(c, to);
  else if (c.has_rank(0))
    c.set_output(0, DType::undefined, c.shape(0));
}

// If the dtype of the target is known, CastLike becomes a Cast, which need not wait until the target is computed.
void decompose_cast_like(Graph& graph, NodeId id) {
  DType to = graph.type(graph.node(id).inputs[1]).dtype;
  if (to == DType::undefined) return;
  Attributes attributes = graph.node(id).attributes;
  attributes.set("to", static_cast<int64_t>(to));
  NodeId cast = graph.add_node({.op_type = "Cast", .inputs = {graph.node(id).inputs[0]}, .attributes = std::move(attributes)}, id);
  graph.replace_uses(graph.node(id).outputs[0], graph.node(cast).outputs[0]);
  graph.remove_node(id);
}

// In opset 1, the type was a name such as "FLOAT". This upgrade makes it a number.
void cast_target_from_name(Graph& graph, NodeId id) {
  Attributes& attributes = graph.node(id).attributes;
  std::string name(attributes.get_string("to"));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  DType to = name == "float" ? DType::float32 : name == "double" ? DType::float64 : name == "bool" ? DType::boolean : dtype_from_name(name);
  if (to == DType::undefined)
    throw Error(ErrorCode::invalid_model, fmt::format("to = \"{}\" is no element type", attributes.get_string("to")));
  attributes.set("to", static_cast<int64_t>(to));
}

void infer_bit_cast(InferContext& c) {
  int64_t to = c.get_int("to");
  if (to <= 0 || to >= kNumDTypes || static_cast<DType>(to) == DType::string)
    throw Error(ErrorCode::invalid_model, fmt::format("to = {} is no element type that bits can be cast to", to));
  auto dtype = static_cast<DType>(to);
  if (c.dtype(0) != DType::undefined && bits_of(c.dtype(0)) != bits_of(dtype))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} has {} bits, {} has {}; they must be as many", name_of(c.dtype(0)),
                                                         bits_of(c.dtype(0)), name_of(dtype), bits_of(dtype)));
  if (!c.has_rank(0)) return c.set_output_dtype(0, dtype);
  c.set_output(0, dtype, c.shape(0));
}

struct CopyBytes {
  size_t bytes;
  static CopyBytes bind(BindContext& c) { return {size_bytes(c.output_dtype(0), c.num_elements(0))}; }
  void run(RunContext& c) const {
    if (bytes > 0) std::memmove(c.out<std::byte>(0), c.in<std::byte>(0), bytes);
  }
};

constexpr TypeSet kCastTypes = kNumeric | kBool | kString | kFloat8 | kSubByte | TypeSet{DType::float6e2m3, DType::float6e3m2};

bool keeps_dtype(const Graph& graph, const Node& node) {
  const Type& type = graph.type(node.inputs[0]);
  return type.is_tensor() && type.dtype != DType::undefined && type.dtype == graph.type(node.outputs[0]).dtype;
}

std::optional<PointwiseStep> cast_step(const Graph& graph, const Node& node) {
  const DType from = dtype_of_value(graph, node.inputs[0]), to = dtype_of_value(graph, node.outputs[0]);
  constexpr TypeSet kFrom{DType::float32, DType::boolean, DType::uint8, DType::int8, DType::int32};
  if (!kFrom.has(from) || (to != DType::float32 && (to != DType::boolean || from != DType::float32))) return std::nullopt;
  return PointwiseStep{{.op_type = to == DType::boolean ? "ToBool" : "ToFloat", .operands = {}, .attributes = {}}, {node.inputs[0]}};
}

// If x is not a float of at least 16 bits (but an integer or an 8-bit float), its gradient keeps the float dtype of dY.
Gradients cast_gradient(GradientContext& g) {
  const DType from = g.type(g.input(0)).dtype;
  if (!kFloats.has(from)) return {g.grad_output(0)};
  return {g.op("Cast", {g.grad_output(0)}, {{"to", static_cast<int64_t>(from)}})};
}

OpDef cast() {
  return {.name = "Cast",
          .since = {1, 6, 9, 13, 19, 21, 23, 24, 25, 28},
          .upgrade = {{1, cast_target_from_name}},
          .inputs = {{"input", kCastTypes, "T1"}},
          .outputs = {{"output", kCastTypes, "T2"}},
          .attributes = {{"to", AttributeDef::Required{}}, {"saturate", int64_t{1}}, {"round_mode", "up"}},
          .infer = infer_cast,
          .cost = elementwise_cost<1>,
          .kernels = {kernel<CastKernel>()},
          .gradient = cast_gradient,
          .keeps_zeros = true,
          .channels_last = {ChannelsLast::How::first_operand},
          .returns_input = keeps_dtype,
          .step = cast_step};
}

OpDef cast_like() {
  return {.name = "CastLike",
          .since = {15, 19, 21, 23, 24, 25},
          .inputs = {{"input", kCastTypes, "T1"}, {"target_type", kCastTypes, "T2"}},
          .outputs = {{"output", kCastTypes, "T2"}},
          .attributes = {{"saturate", int64_t{1}}, {"round_mode", "up"}},
          .infer = infer_cast_like,
          .cost = elementwise_cost<1>,
          .kernels = {kernel<CastKernel>()},
          .decompose = decompose_cast_like,
          .returns_input = keeps_dtype};
}

std::vector<ValueId> bit_cast_gradient(GradientContext& g) {
  const Type &from = g.type(g.input(0)), &to = g.type(g.output(0));
  if (from.dtype != to.dtype)
    throw Error(ErrorCode::not_implemented, fmt::format("the bits of {} as {} have no gradient", to_string(from), to_string(to)));
  return {g.grad_output(0)};
}

// Bytes that are cast to booleans may be neither 0 nor 1. As everywhere else where booleans enter a graph, such a byte becomes 1.
void decompose_bit_cast(Graph& graph, NodeId id) {
  const Attributes& attributes = graph.node(id).attributes;
  const DType from = graph.type(graph.node(id).inputs[0]).dtype;
  if (attributes.get_int("to") != static_cast<int64_t>(DType::boolean) || from == DType::boolean) return;
  Decomposition d(graph, id);
  const ValueId bytes = d.op("BitCast", {d.in(0)}, {{"to", static_cast<int64_t>(DType::uint8)}});
  d.give(0, d.cast(bytes, DType::boolean));
  d.finish();
}

OpDef bit_cast() {
  constexpr TypeSet kTypes = kNumeric | kBool | kComplex | kFloat8 | kSubByte;
  return {.name = "BitCast",
          .since = {26},
          .inputs = {{"input", kTypes, "T1"}},
          .outputs = {{"output", kTypes, "T2"}},
          .attributes = {{"to", AttributeDef::Required{}}},
          .infer = infer_bit_cast,
          .cost = elementwise_cost<0>,
          .alias = {is_view(0, 0)},
          .kernels = {kernel<CopyBytes>()},
          .gradient = bit_cast_gradient,
          .decompose = decompose_bit_cast,
          .quantization = Quantization::quantizes};  // lets the gradient rule report integers, whose gradient is lost
}

}  // namespace

std::vector<OpDef> cast_ops() { return {cast(), cast_like(), bit_cast()}; }

}  // namespace treadle::ops
