// Computes Cast from and to dtypes of at most 8 bits per element (codes), for which shaders have no arithmetic.
#include "gpu/narrow.h"

#include <optional>

#include "core/values/float_types.h"
#include "gpu/code_writer.h"
#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"

namespace treadle::gpu {
namespace {

/// The kinds of codes, with their numbers in narrow.comp.
enum class NarrowKind : uint32_t { integer, floating, scale };

struct NarrowFormat {
  NarrowKind kind = NarrowKind::integer;
  MiniFloatFormat format{0, 0, 0, Specials::none};
  bool is_signed = false;
};

std::optional<NarrowFormat> narrow_format(DType dtype) {
  const auto floating = [](const MiniFloatFormat& format) { return NarrowFormat{NarrowKind::floating, format, true}; };
  switch (dtype) {
    case DType::float8e4m3fn: return floating({4, 3, 7, Specials::nan_all_ones});
    case DType::float8e4m3fnuz: return floating({4, 3, 8, Specials::nan_negative_zero});
    case DType::float8e5m2: return floating({5, 2, 15, Specials::ieee});
    case DType::float8e5m2fnuz: return floating({5, 2, 16, Specials::nan_negative_zero});
    case DType::float6e2m3: return floating({2, 3, 1, Specials::none});
    case DType::float6e3m2: return floating({3, 2, 3, Specials::none});
    case DType::float4e2m1: return floating({2, 1, 1, Specials::none});
    case DType::float8e8m0: return NarrowFormat{NarrowKind::scale, {0, 0, 0, Specials::none}, false};
    case DType::int4:
    case DType::int2: return NarrowFormat{NarrowKind::integer, {0, 0, 0, Specials::none}, true};
    case DType::uint4:
    case DType::uint2: return NarrowFormat{};
    default: return std::nullopt;
  }
}

struct NarrowState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  DType computed = DType::float32;  // dtype that the shader converts to codes: float32; int32 to keep only the low bits
};

const vulkan::Shader* narrow_shader(DType dtype, bool writes, bool from_ints, const Attributes& attributes) {
  const NarrowFormat narrow = *narrow_format(dtype);
  const std::string_view mode = attributes.get_string("round_mode", "up");
  const uint32_t rounding = mode == "up" ? 0 : mode == "down" ? 1 : 2;
  const uint32_t constants[] = {uint32_t{writes},
                                static_cast<uint32_t>(bits_of(dtype)),
                                static_cast<uint32_t>(narrow.kind),
                                static_cast<uint32_t>(narrow.format.exponent_bits),
                                static_cast<uint32_t>(narrow.format.mantissa_bits),
                                static_cast<uint32_t>(narrow.format.bias),
                                static_cast<uint32_t>(narrow.format.specials),
                                uint32_t{attributes.get_int("saturate", 1) != 0},
                                rounding,
                                uint32_t{narrow.is_signed},
                                uint32_t{from_ints}};
  return find_moving_shader("narrow", 1, constants);
}

void dispatch_narrow(const vulkan::Shader& shader, const void* codes, const void* numbers, int64_t count, int64_t invocations) {
  Push push;
  push.pointer(codes).pointer(numbers).word(count32(count));
  stream().dispatch(shader, push.bytes(), groups_over(count32(invocations)));
}

/// Cast from codes.
struct Widen {
  ConvertedOperand y;

  static Widen bind(BindContext& c) {
    Widen k;
    ops::ScratchLayout layout;
    k.y = ConvertedOperand::reserve(layout, c.output_dtype(0), DType::float32, c.num_elements(0));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    read_narrow(*c.packed<NarrowState>().shader, c.in<void>(0), y.result(c, 0), y.count);
    y.store(c, 0);
  }
};

/// Cast to codes.
struct Narrow {
  DType to;
  ConvertedOperand x;

  static Narrow bind(BindContext& c) {
    Narrow k{c.output_dtype(0), {}};
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), c.packed<NarrowState>().computed, c.num_elements(0));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const { write_narrow(*c.packed<NarrowState>().shader, to, x.read(c, 0), c.out<void>(0), x.count); }
};

/// Returns true if a conversion may go through float32: float32 represents all numbers of the type, or those that it rounds are too large
/// for the small float anyway.
bool converts_to_small_floats(DType from, DType to) {
  Arithmetic type{};
  if (!arithmetic_of(from, type) || from == DType::float64) return false;
  return to != DType::float8e8m0 || type == Arithmetic::f32 || bits_of(from) <= 16;
}

}  // namespace

bool is_narrow(DType dtype) { return narrow_format(dtype).has_value(); }

const vulkan::Shader* narrow_reader(DType dtype) { return narrow_shader(dtype, false, false, {}); }

const vulkan::Shader* narrow_writer(DType dtype, const Attributes& attributes, bool from_ints) {
  return narrow_shader(dtype, true, from_ints, attributes);
}

void read_narrow(const vulkan::Shader& reader, const void* codes, void* numbers, int64_t count) {
  dispatch_narrow(reader, codes, numbers, count, count);
}

void write_narrow(const vulkan::Shader& writer, DType dtype, const void* numbers, void* codes, int64_t count) {
  const int64_t together = bits_of(dtype) == 8 ? 1 : bits_of(dtype) == 4 ? 2 : 4;  // number of codes that fill whole bytes
  dispatch_narrow(writer, codes, numbers, count, (count + together - 1) / together);
}

DeviceKernel find_narrow(const Graph& graph, const Node& node) {
  static const KernelDef widen = kernel<Widen>("gpu"), narrow = kernel<Narrow>("gpu");
  if (!node.is("Cast", "")) return {};
  const DType from = graph.type(node.inputs[0]).dtype, to = graph.type(node.outputs[0]).dtype;
  const std::optional<NarrowFormat> source = narrow_format(from), target = narrow_format(to);
  if (source.has_value() == target.has_value()) return {};
  auto state = std::make_shared<NarrowState>();
  Arithmetic other{};
  if (source) {
    // Excludes these conversions: devices differ in how they convert NaN, and numbers that the integer type cannot represent.
    if (!arithmetic_of(to, other) || (source->kind != NarrowKind::integer && other != Arithmetic::f32 && other != Arithmetic::f64))
      return {};
    state->shader = narrow_reader(from);
    return {&widen, std::move(state)};
  }
  if (!arithmetic_of(from, other)) return {};
  if (target->kind == NarrowKind::integer) {
    if (other == Arithmetic::f64) return {};
    state->computed = other == Arithmetic::f32 ? DType::float32 : DType::int32;
  } else if (!converts_to_small_floats(from, to)) {
    return {};
  }
  state->shader = narrow_writer(to, node.attributes, state->computed == DType::int32);
  return {&narrow, std::move(state)};
}

}  // namespace treadle::gpu
