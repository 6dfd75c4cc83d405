// Converts between float32 and elements of at most 8 bits (codes): small floats, packed 2-bit and 4-bit integers (float_types.h).
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_8bit_storage : require

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint WRITES = 0;  // 0: an invocation reads one code; 1: it writes as many codes as fill whole bytes
layout(constant_id = 1) const uint BITS = 8;
layout(constant_id = 2) const uint KIND = 0;
const uint INTEGER = 0, FLOAT = 1, SCALE = 2;  // SCALE: float8e8m0
layout(constant_id = 3) const uint EXPONENT_BITS = 0;
layout(constant_id = 4) const uint MANTISSA_BITS = 0;
layout(constant_id = 5) const uint BIAS = 0;
layout(constant_id = 6) const uint SPECIALS = 0;  // as numbered in treadle::Specials
const uint IEEE = 0, NAN_ALL_ONES = 1, NAN_NEGATIVE_ZERO = 2, NONE = 3;
layout(constant_id = 7) const uint SATURATES = 1;
layout(constant_id = 8) const uint ROUNDING = 0;  // for SCALE, numbered as in treadle::ScaleRounding
const uint UP = 0, DOWN = 1;
layout(constant_id = 9) const uint SIGNED = 0;    // 1: the codes are signed (only if INTEGER)
layout(constant_id = 10) const uint FROM_INTS = 0;  // 1: the numbers to write are 32-bit integers, whose low bits are kept

layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Bytes { uint8_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint at[]; };

layout(push_constant, scalar) uniform Push {
  Bytes codes;
  Words numbers;
  uint count;  // number of codes
} p;

const uint SIGN = 1u << (EXPONENT_BITS + MANTISSA_BITS), INFINITY = ((1u << EXPONENT_BITS) - 1u) << MANTISSA_BITS;
const uint MOST = SPECIALS == IEEE ? INFINITY - 1 : SPECIALS == NAN_ALL_ONES ? SIGN - 2 : SIGN - 1;
const uint NOT_A_NUMBER = SPECIALS == IEEE ? INFINITY + 2 : SPECIALS == NAN_ALL_ONES ? SIGN - 1 : SIGN;
const uint QUIET = 0x7FC00000u;  // a float32 NaN

// Returns the bits of the float32 number that a code represents.
uint decoded(uint code) {
  if (KIND == INTEGER) return floatBitsToUint(SIGNED != 0 ? float(bitfieldExtract(int(code), 0, int(BITS))) : float(code));
  if (KIND == SCALE) return code == 0xFFu ? QUIET : code == 0 ? 0x00400000u : code << 23;
  const uint magnitude = code & (SIGN - 1u), sign = (code & SIGN) != 0 ? 0x80000000u : 0u;
  if (SPECIALS == IEEE && magnitude >= INFINITY) return magnitude == INFINITY ? sign | 0x7F800000u : QUIET;
  if (SPECIALS == NAN_ALL_ONES && magnitude == NOT_A_NUMBER || SPECIALS == NAN_NEGATIVE_ZERO && code == NOT_A_NUMBER) return QUIET;
  const uint exponent = magnitude >> MANTISSA_BITS, fraction = magnitude & ((1u << MANTISSA_BITS) - 1u);
  const uint mantissa = exponent != 0 ? fraction | 1u << MANTISSA_BITS : fraction;
  const int power = int(max(exponent, 1u)) - int(BIAS) - int(MANTISSA_BITS);
  return sign | floatBitsToUint(float(mantissa) * uintBitsToFloat(uint(power + 127) << 23));
}

uint encoded_float(uint word) {
  const uint sign = (word >> 31) != 0 ? SIGN : 0u;
  word &= 0x7FFFFFFFu;
  if (word > 0x7F800000u) return SPECIALS == IEEE || SPECIALS == NAN_ALL_ONES ? sign | NOT_A_NUMBER : NOT_A_NUMBER;
  const int exponent = int(word >> 23) - 127, least = 1 - int(BIAS);
  uint shift = 23u - MANTISSA_BITS, significand = word - (uint(127 - int(BIAS)) << 23);
  if (exponent < least) {  // subnormal codes have a fixed unit, to which the mantissa is shifted
    shift += uint(least - exponent);
    significand = word & 0x7FFFFFu | 0x800000u;
    if (shift > 25) significand = 0, shift = 1;
  }
  const uint code = significand + (1u << (shift - 1u)) - 1u + (significand >> shift & 1u) >> shift;
  if (code > MOST) {
    if (SATURATES != 0 || SPECIALS == NONE) return sign | MOST;
    return SPECIALS == IEEE ? sign | INFINITY : SPECIALS == NAN_ALL_ONES ? sign | NOT_A_NUMBER : NOT_A_NUMBER;
  }
  return SPECIALS == NAN_NEGATIVE_ZERO && code == 0 ? 0u : sign | code;
}

uint encoded_scale(uint word) {
  const uint otherwise = 0xFFu;
  word &= 0x7FFFFFFFu;
  if (word > 0x7F800000u) return otherwise;
  if (word == 0x7F800000u) return SATURATES != 0 ? 0xFEu : otherwise;
  if (word < 0x00400000u) return SATURATES != 0 ? 0u : otherwise;
  uint exponent = word >> 23, mantissa = word & 0x7FFFFFu, power = 0x800000u;
  if (exponent == 0) mantissa -= 0x400000u, power = 0x400000u;
  if (ROUNDING == UP ? mantissa != 0 : ROUNDING != DOWN && mantissa >= power / 2u) ++exponent;
  return exponent > 0xFEu ? (SATURATES != 0 ? 0xFEu : otherwise) : exponent;
}

uint encoded(uint word) {
  if (KIND == FLOAT) return encoded_float(word);
  if (KIND == SCALE) return encoded_scale(word);
  if (FROM_INTS != 0) return word;
  // Rounds half away from zero. From 2^31 on, numbers are multiples of 256, so the low bits of their integers are 0.
  const float x = uintBitsToFloat(word), magnitude = floor(abs(x)), rounded = abs(x) - magnitude >= 0.5 ? magnitude + 1 : magnitude;
  if (!(rounded < 2147483648.0)) return 0u;
  return x < 0 ? uint(-int(rounded)) : uint(rounded);
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (WRITES == 0) {
    if (i >= p.count) return;
    const uint byte = i * BITS / 8u, shift = i * BITS % 8u;
    uint code = uint(p.codes.at[byte]) >> shift;
    if (shift + BITS > 8u) code |= uint(p.codes.at[byte + 1u]) << (8u - shift);
    p.numbers.at[i] = decoded(code & ((1u << BITS) - 1u));
    return;
  }
  const uint numbers = BITS == 8 ? 1 : BITS == 4 ? 2 : 4, first = i * numbers;
  if (first >= p.count) return;
  uint word = 0;
  for (uint k = 0; k < numbers && first + k < p.count; ++k) word |= (encoded(p.numbers.at[first + k]) & ((1u << BITS) - 1u)) << k * BITS;
  const uint start = first * BITS / 8u, end = (min(first + numbers, p.count) * BITS + 7u) / 8u;
  for (uint byte = start; byte < end; ++byte) p.codes.at[byte] = uint8_t(word >> 8u * (byte - start) & 0xFFu);
}
