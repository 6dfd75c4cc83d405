// Floating-point and packed integer types that C++ lacks, in ONNX's bit layout, with inline conversions. These use integer arithmetic only:
// code with F16C would differ between files built for different instruction sets, and the linker would keep an arbitrary copy. SIMD kernels
// convert in bulk.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "treadle/tensor.h"

namespace treadle {

namespace detail {

/// Rounds to odd: if the conversion to float is inexact, the last bit is set. Rounding the result to a narrower type is then the same as
/// rounding the double (Boldo and Melquiond 2008).
constexpr float round_to_odd(double value) {
  auto near = static_cast<float>(value);
  auto back = static_cast<double>(near);
  if (back == value || value != value) return near;
  auto bits = std::bit_cast<uint32_t>(near);
  bool too_large = value < 0 ? back < value : back > value;
  if (too_large) --bits;  // toward zero: the sign bit is separate, so this lowers the magnitude, even from infinity to the largest number
  return std::bit_cast<float>(bits | 1U);
}

constexpr uint16_t float_to_half_bits(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  bits &= 0x7FFFFFFFU;
  if (bits > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U | ((bits >> 13) & 0x3FFU));
  if (bits >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7C00U);  // 65536 and above; smaller numbers may round to infinity below
  if (bits < 0x38800000U) {                                               // values below 2^-14 are subnormal
    // After adding 0.5, the last bit of the float has the weight of a half subnormal, 2^-24. The addition rounds to nearest even.
    float shifted = std::bit_cast<float>(bits) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U));
  }
  uint32_t odd = (bits >> 13) & 1U;
  return static_cast<uint16_t>(sign | ((bits - 0x38000000U + 0xFFFU + odd) >> 13));
}

constexpr float half_bits_to_float(uint16_t half) {
  uint32_t sign = (half & 0x8000U) << 16, magnitude = (half & 0x7FFFU) << 13;
  uint32_t exponent = magnitude & 0x0F800000U;
  if (exponent == 0x0F800000U) return std::bit_cast<float>(sign | (magnitude + 0x70000000U));  // the number is infinity or NaN
  if (exponent != 0) return std::bit_cast<float>(sign | (magnitude + 0x38000000U));
  // Subnormal: gives it the exponent of 2^-14 and its hidden bit, then subtracts that bit's value.
  float value = std::bit_cast<float>(magnitude + 0x38800000U) - std::bit_cast<float>(0x38800000U);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

constexpr uint16_t float_to_bfloat16_bits(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);  // a NaN must not round to infinity
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

constexpr float bfloat16_bits_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

}  // namespace detail

/// The common part of the two 16-bit formats. Conversions round to nearest even; NaN stays NaN and becomes quiet.
/// @tparam kEncode  returns the bits of a float
/// @tparam kDecode  returns the float with these bits, exactly
template <typename Float, uint16_t (*kEncode)(float), float (*kDecode)(uint16_t)>
struct SixteenBitFloat {
  uint16_t bits = 0;

  constexpr SixteenBitFloat() = default;
  explicit constexpr SixteenBitFloat(float value) : bits(kEncode(value)) {}
  explicit constexpr SixteenBitFloat(double value) : bits(kEncode(detail::round_to_odd(value))) {}
  template <typename T>
    requires std::is_integral_v<T>
  explicit constexpr SixteenBitFloat(T value) : SixteenBitFloat(static_cast<double>(value)) {}
  static constexpr Float from_bits(uint16_t bits) {
    Float result;
    result.bits = bits;
    return result;
  }

  template <typename T>
    requires std::is_arithmetic_v<T>
  explicit constexpr operator T() const {
    return static_cast<T>(kDecode(bits));
  }
  friend constexpr bool operator==(Float a, Float b) { return static_cast<float>(a) == static_cast<float>(b); }
  friend constexpr auto operator<=>(Float a, Float b) { return static_cast<float>(a) <=> static_cast<float>(b); }
};

/// The IEEE 754 type binary16.
struct Float16 : SixteenBitFloat<Float16, detail::float_to_half_bits, detail::half_bits_to_float> {
  using SixteenBitFloat::SixteenBitFloat;
};

/// The bfloat16 type: the upper half of a float.
struct BFloat16 : SixteenBitFloat<BFloat16, detail::float_to_bfloat16_bits, detail::bfloat16_bits_to_float> {
  using SixteenBitFloat::SixteenBitFloat;
};

/// The codes of a small format that are not finite numbers.
enum class Specials : uint8_t {
  ieee,               ///< infinities and NaNs, in the largest exponent
  nan_all_ones,       ///< "fn": the code of all ones is NaN, of either sign; no infinity
  nan_negative_zero,  ///< "fnuz": the code of -0 is the only NaN; no infinity
  none,               ///< every code is a finite number
};

struct MiniFloatFormat {
  int exponent_bits, mantissa_bits, bias;
  Specials specials;
  bool operator==(const MiniFloatFormat&) const = default;
};

/// A float of at most eight bits, in the low bits of a byte. Tensors pack floats of 4 and 6 bits, see PackedFloat.
template <MiniFloatFormat kFormat>
struct MiniFloat {
  static constexpr int kBits = 1 + kFormat.exponent_bits + kFormat.mantissa_bits;
  static constexpr uint8_t kSign = static_cast<uint8_t>(1U << (kBits - 1));
  // The code of infinity, which only the ieee format has.
  static constexpr uint8_t kInfinity = static_cast<uint8_t>(((1U << kFormat.exponent_bits) - 1U) << kFormat.mantissa_bits);
  static constexpr uint8_t kMax = kFormat.specials == Specials::ieee           ? kInfinity - 1
                                  : kFormat.specials == Specials::nan_all_ones ? kSign - 2
                                                                               : kSign - 1;
  static constexpr uint8_t kNaN = kFormat.specials == Specials::ieee           ? kInfinity + 2
                                  : kFormat.specials == Specials::nan_all_ones ? kSign - 1
                                                                               // Formats without NaN of their own use -0, as ml_dtypes
                                                                               // does.
                                                                               : kSign;

  uint8_t bits = 0;

  constexpr MiniFloat() = default;
  /// @param saturate  true: numbers that are too large become the largest finite number (ONNX Cast, `saturate` = 1). False: they become
  /// infinity or, if the format has none, NaN
  explicit constexpr MiniFloat(float value, bool saturate = true) : bits(encode(value, saturate)) {}
  explicit constexpr MiniFloat(double value, bool saturate = true) : MiniFloat(detail::round_to_odd(value), saturate) {}
  template <typename T>
    requires std::is_integral_v<T>
  explicit constexpr MiniFloat(T value, bool saturate = true) : MiniFloat(static_cast<double>(value), saturate) {}
  static constexpr MiniFloat from_bits(uint8_t bits) {
    MiniFloat result;
    result.bits = bits;
    return result;
  }

  template <typename T>
    requires std::is_arithmetic_v<T>
  explicit constexpr operator T() const {
    return static_cast<T>(kTable[bits]);
  }
  friend constexpr bool operator==(MiniFloat a, MiniFloat b) { return static_cast<float>(a) == static_cast<float>(b); }
  friend constexpr auto operator<=>(MiniFloat a, MiniFloat b) { return static_cast<float>(a) <=> static_cast<float>(b); }

 private:
  static constexpr float decode(unsigned code) {
    if (code > 2U * kSign - 1U) return 0;  // codes with more bits than the format do not occur
    unsigned magnitude = code & (kSign - 1U);
    bool negative = (code & kSign) != 0;
    constexpr float kQuiet = std::numeric_limits<float>::quiet_NaN();
    if (kFormat.specials == Specials::ieee && magnitude == kInfinity)
      return negative ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
    if (kFormat.specials == Specials::ieee && magnitude > kInfinity) return kQuiet;
    if (kFormat.specials == Specials::nan_all_ones && magnitude == kNaN) return kQuiet;
    if (kFormat.specials == Specials::nan_negative_zero && code == kNaN) return kQuiet;
    unsigned exponent = magnitude >> kFormat.mantissa_bits, mantissa = magnitude & ((1U << kFormat.mantissa_bits) - 1U);
    if (exponent != 0) mantissa |= 1U << kFormat.mantissa_bits;
    int power = static_cast<int>(exponent != 0 ? exponent : 1U) - kFormat.bias - kFormat.mantissa_bits;
    auto scale = std::bit_cast<float>(static_cast<uint32_t>(power + 127) << 23);
    return (negative ? -1.0F : 1.0F) * static_cast<float>(mantissa) * scale;
  }

  static constexpr std::array<float, 256> make_table() {
    std::array<float, 256> table{};
    for (unsigned code = 0; code < 256; ++code) table[code] = decode(code);
    return table;
  }
  static constexpr std::array<float, 256> kTable = make_table();

  static constexpr uint8_t encode(float value, bool saturate) {
    auto bits = std::bit_cast<uint32_t>(value);
    auto sign = static_cast<uint8_t>((bits >> 31) != 0 ? kSign : 0);
    bits &= 0x7FFFFFFFU;
    if (bits > 0x7F800000U) return kFormat.specials == Specials::ieee || kFormat.specials == Specials::nan_all_ones ? sign | kNaN : kNaN;
    int exponent = static_cast<int>(bits >> 23) - 127;
    constexpr int kMinExponent = 1 - kFormat.bias;
    int shift = 23 - kFormat.mantissa_bits;
    uint32_t significand = bits;
    if (exponent < kMinExponent) {  // subnormal in the target format, whose last bit has a fixed weight: the mantissa is shifted to it
      shift += kMinExponent - exponent;
      significand = (bits & 0x7FFFFFU) | 0x800000U;
      if (shift > 25) significand = 0, shift = 1;  // less than a quarter of the last bit's weight; includes float's own subnormals
    } else {
      significand -= static_cast<uint32_t>(127 - kFormat.bias) << 23;
    }
    uint32_t code = (significand + (1U << (shift - 1)) - 1U + ((significand >> shift) & 1U)) >> shift;
    if (code > kMax) {
      if (saturate || kFormat.specials == Specials::none) return sign | kMax;
      if (kFormat.specials == Specials::ieee) return sign | kInfinity;
      return kFormat.specials == Specials::nan_all_ones ? sign | kNaN : kNaN;
    }
    if (kFormat.specials == Specials::nan_negative_zero && code == 0) return 0;  // the format has no -0
    return sign | static_cast<uint8_t>(code);
  }
};

using Float8E4M3FN = MiniFloat<MiniFloatFormat{4, 3, 7, Specials::nan_all_ones}>;
using Float8E4M3FNUZ = MiniFloat<MiniFloatFormat{4, 3, 8, Specials::nan_negative_zero}>;
using Float8E5M2 = MiniFloat<MiniFloatFormat{5, 2, 15, Specials::ieee}>;
using Float8E5M2FNUZ = MiniFloat<MiniFloatFormat{5, 2, 16, Specials::nan_negative_zero}>;
using Float6E2M3 = MiniFloat<MiniFloatFormat{2, 3, 1, Specials::none}>;
using Float6E3M2 = MiniFloat<MiniFloatFormat{3, 2, 3, Specials::none}>;
using Float4E2M1 = MiniFloat<MiniFloatFormat{2, 1, 1, Specials::none}>;

/// Values of Cast's attribute `round_mode` (since opset 24), which applies to float8e8m0 only.
enum class ScaleRounding : uint8_t { up, down, nearest };

/// A power of two from 2^-127 to 2^127, or NaN: the scale of the OCP microscaling formats.
struct Float8E8M0 {
  uint8_t bits = 0;

  constexpr Float8E8M0() = default;
  /// Converts a float. Ignores the sign, since ONNX leaves negative values open. Zero and too small numbers become 2^-127, infinity and too
  /// large numbers 2^127. If not `saturate`, all of these become NaN.
  explicit constexpr Float8E8M0(float value, bool saturate = true, ScaleRounding rounding = ScaleRounding::up)
      : bits(encode(value, saturate, rounding)) {}
  explicit constexpr Float8E8M0(double value, bool saturate = true, ScaleRounding rounding = ScaleRounding::up)
      : Float8E8M0(detail::round_to_odd(value), saturate, rounding) {}
  template <typename T>
    requires std::is_integral_v<T>
  explicit constexpr Float8E8M0(T value, bool saturate = true, ScaleRounding rounding = ScaleRounding::up)
      : Float8E8M0(static_cast<double>(value), saturate, rounding) {}
  static constexpr Float8E8M0 from_bits(uint8_t bits) {
    Float8E8M0 result;
    result.bits = bits;
    return result;
  }

  template <typename T>
    requires std::is_arithmetic_v<T>
  explicit constexpr operator T() const {
    if (bits == 0xFF) return static_cast<T>(std::numeric_limits<float>::quiet_NaN());
    return static_cast<T>(std::bit_cast<float>(bits == 0 ? 0x00400000U : static_cast<uint32_t>(bits) << 23));  // 2^-127 is subnormal
  }
  friend constexpr bool operator==(Float8E8M0 a, Float8E8M0 b) { return static_cast<float>(a) == static_cast<float>(b); }
  friend constexpr auto operator<=>(Float8E8M0 a, Float8E8M0 b) { return static_cast<float>(a) <=> static_cast<float>(b); }

 private:
  static constexpr uint8_t encode(float value, bool saturate, ScaleRounding rounding) {
    constexpr uint8_t kNaN = 0xFF, kMax = 0xFE;
    auto bits = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFU;
    if (bits > 0x7F800000U) return kNaN;
    if (bits == 0x7F800000U) return saturate ? kMax : kNaN;
    if (bits < 0x00400000U) return saturate ? 0 : kNaN;  // too small for this type: below 2^-127, including zero
    uint32_t exponent = bits >> 23, mantissa = bits & 0x7FFFFFU;
    uint32_t power = 0x800000U;
    if (exponent == 0) mantissa -= 0x400000U, power = 0x400000U;  // a subnormal float in [2^-127, 2^-126)
    bool away = rounding == ScaleRounding::up ? mantissa != 0 : rounding == ScaleRounding::nearest && mantissa >= power / 2;
    if (away) ++exponent;
    if (exponent > kMax) return saturate ? kMax : kNaN;
    return static_cast<uint8_t>(exponent);
  }
};

/// Reads code `index` of a stream of kBits-bit codes. The first code of a byte is in its low bits, as ONNX packs 2, 4 and 6 bits.
template <int kBits>
constexpr uint8_t get_packed_code(const void* data, int64_t index) {
  const auto* bytes = static_cast<const uint8_t*>(data) + index * kBits / 8;
  unsigned shift = static_cast<unsigned>(index * kBits % 8), code = bytes[0] >> shift;
  if (8 % kBits != 0 && shift + kBits > 8) code |= static_cast<unsigned>(bytes[1]) << (8 - shift);
  return static_cast<uint8_t>(code & ((1U << kBits) - 1U));
}

/// Sets the code at `index`, and keeps the other codes in its byte. So two threads must not write to the same byte.
template <int kBits>
constexpr void set_packed_code(void* data, int64_t index, unsigned code) {
  constexpr unsigned kMask = (1U << kBits) - 1U;
  auto* bytes = static_cast<uint8_t*>(data) + index * kBits / 8;
  unsigned shift = static_cast<unsigned>(index * kBits % 8);
  auto put = [&](uint8_t& byte, unsigned mask, unsigned bits) { byte = static_cast<uint8_t>((byte & ~mask) | bits); };
  put(bytes[0], kMask << shift, (code & kMask) << shift);
  if (8 % kBits != 0 && shift + kBits > 8) put(bytes[1], kMask >> (8 - shift), (code & kMask) >> (8 - shift));
}

/// Access to packed integers of 2 or 4 bits.
template <int kBitsPerElement, typename Value>
struct PackedInt {
  static constexpr int kBits = kBitsPerElement;
  using value_type = Value;
  static constexpr int kMin = std::is_signed_v<Value> ? -(1 << (kBits - 1)) : 0;
  static constexpr int kMax = std::is_signed_v<Value> ? (1 << (kBits - 1)) - 1 : (1 << kBits) - 1;

  static constexpr Value get_packed(const void* data, int64_t index) {
    int code = get_packed_code<kBits>(data, index);
    return static_cast<Value>(code > kMax ? code - (1 << kBits) : code);
  }
  /// Stores the low kBits of `value`.
  static constexpr void set_packed(void* data, int64_t index, Value value) {
    set_packed_code<kBits>(data, index, static_cast<unsigned>(value));
  }
};

using Int4 = PackedInt<4, int8_t>;
using UInt4 = PackedInt<4, uint8_t>;
using Int2 = PackedInt<2, int8_t>;
using UInt2 = PackedInt<2, uint8_t>;

/// Access to packed float4e2m1, float6e2m3 and float6e3m2.
template <typename T>
struct PackedFloat {
  static constexpr int kBits = T::kBits;
  using value_type = T;
  static T get_packed(const void* data, int64_t index) { return T::from_bits(get_packed_code<kBits>(data, index)); }
  static void set_packed(void* data, int64_t index, T value) { set_packed_code<kBits>(data, index, value.bits); }
};
using PackedFloat4E2M1 = PackedFloat<Float4E2M1>;
using PackedFloat6E2M3 = PackedFloat<Float6E2M3>;
using PackedFloat6E3M2 = PackedFloat<Float6E3M2>;

// Packed types have no dtype_of: a pointer to one would step over several elements.
template <>
inline constexpr DType dtype_of<Float16> = DType::float16;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bfloat16;
template <>
inline constexpr DType dtype_of<Float8E4M3FN> = DType::float8e4m3fn;
template <>
inline constexpr DType dtype_of<Float8E4M3FNUZ> = DType::float8e4m3fnuz;
template <>
inline constexpr DType dtype_of<Float8E5M2> = DType::float8e5m2;
template <>
inline constexpr DType dtype_of<Float8E5M2FNUZ> = DType::float8e5m2fnuz;
template <>
inline constexpr DType dtype_of<Float8E8M0> = DType::float8e8m0;

static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2 && sizeof(Float8E4M3FN) == 1 && sizeof(Float8E8M0) == 1);

/// The type to compute in: float for narrow floats, the type itself otherwise.
template <typename T>
struct ComputeType {
  using type = T;
};
template <>
struct ComputeType<Float16> {
  using type = float;
};
template <>
struct ComputeType<BFloat16> {
  using type = float;
};
template <>
struct ComputeType<Float8E8M0> {
  using type = float;
};
template <MiniFloatFormat kFormat>
struct ComputeType<MiniFloat<kFormat>> {
  using type = float;
};
template <typename T>
using compute_type_t = typename ComputeType<T>::type;

}  // namespace treadle

/// Defines only the members that kernels use.
template <>
class std::numeric_limits<treadle::Float16> {
 public:
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true;
  static constexpr int digits = 11;
  static constexpr treadle::Float16 max() { return treadle::Float16::from_bits(0x7BFF); }
  static constexpr treadle::Float16 lowest() { return treadle::Float16::from_bits(0xFBFF); }
  static constexpr treadle::Float16 min() { return treadle::Float16::from_bits(0x0400); }
  static constexpr treadle::Float16 epsilon() { return treadle::Float16::from_bits(0x1400); }
  static constexpr treadle::Float16 infinity() { return treadle::Float16::from_bits(0x7C00); }
  static constexpr treadle::Float16 quiet_NaN() { return treadle::Float16::from_bits(0x7E00); }
};

template <>
class std::numeric_limits<treadle::BFloat16> {
 public:
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true;
  static constexpr int digits = 8;
  static constexpr treadle::BFloat16 max() { return treadle::BFloat16::from_bits(0x7F7F); }
  static constexpr treadle::BFloat16 lowest() { return treadle::BFloat16::from_bits(0xFF7F); }
  static constexpr treadle::BFloat16 min() { return treadle::BFloat16::from_bits(0x0080); }
  static constexpr treadle::BFloat16 epsilon() { return treadle::BFloat16::from_bits(0x3C00); }
  static constexpr treadle::BFloat16 infinity() { return treadle::BFloat16::from_bits(0x7F80); }
  static constexpr treadle::BFloat16 quiet_NaN() { return treadle::BFloat16::from_bits(0x7FC0); }
};
