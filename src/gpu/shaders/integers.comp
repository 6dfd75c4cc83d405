// Div, Mod and BitShift of integers, and Mod of float32, with broadcasting. Each invocation computes one element. It divides magnitudes, as
// unsigned integers, so that the lowest integer divided by -1 wraps around on every device.
#version 460
#extension GL_GOOGLE_include_directive : require
#if defined(ELEMENT_B8)
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define WORD uint64_t
#define WIDE uint64_t
#define WIDE_SIGNED int64_t
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Words { WORD at[]; };
const uint BITS = 64;
#else
#include "words.glsl"
#define WIDE uint
#define WIDE_SIGNED int
#if defined(ELEMENT_B1)
const uint BITS = 8;
#elif defined(ELEMENT_B2)
const uint BITS = 16;
#else
const uint BITS = 32;
#endif
#endif

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
const uint QUOTIENT = 0, FLOORED_REST = 1, TRUNCATED_REST = 2, LEFT = 3, RIGHT = 4;
const uint FLOORED_FLOAT_REST = 5, TRUNCATED_FLOAT_REST = 6;  // the operands are the bits of float32 numbers
layout(constant_id = 1) const uint SIGNED = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words y, a, b;
  Fault fault;         // set to the error number `site` if a divisor is 0
  uint count, site;
  uint a_extends, b_extends;  // bit i: the operand is not broadcast along dimension i
  uint dims[8];        // extents of the result, innermost last
} p;

WIDE extended(WIDE word) {
  if (SIGNED == 0 || BITS >= 32) return word;
  return WIDE(bitfieldExtract(int(word), 0, int(BITS)));
}
bool is_negative(WIDE x) { return SIGNED != 0 && WIDE_SIGNED(x) < WIDE_SIGNED(0); }
WIDE magnitude(WIDE x) { return is_negative(x) ? WIDE(0) - x : x; }

#if defined(ELEMENT_B4)
// The remainder of a float32 division, computed exactly: the mantissa of the dividend is reduced bit by bit.
uint float_rest(uint a, uint b) {
  const uint sign = a & 0x80000000u, dividend = a & 0x7FFFFFFFu, divisor = b & 0x7FFFFFFFu;
  if (dividend >= 0x7F800000u || divisor > 0x7F800000u || divisor == 0) return 0x7FC00000u;
  if (divisor == 0x7F800000u || dividend < divisor) return a;
  uint exponent = max(dividend >> 23, 1u), rest = dividend & 0x7FFFFFu | (dividend >= 0x800000u ? 0x800000u : 0u);
  const uint least = max(divisor >> 23, 1u), unit = divisor & 0x7FFFFFu | (divisor >= 0x800000u ? 0x800000u : 0u);
  for (; exponent > least; --exponent) rest = (rest >= unit ? rest - unit : rest) << 1;
  rest %= unit;
  if (rest == 0) return sign;
  while (rest < 0x800000u && exponent > 1u) rest <<= 1, --exponent;
  return sign | (rest >= 0x800000u ? exponent << 23 | rest & 0x7FFFFFu : rest);
}
uint floored_float_rest(uint a, uint b) {
  const uint rest = float_rest(a, b);
  if ((rest & 0x7FFFFFFFu) == 0) return b & 0x80000000u;
  const bool differs = (rest >> 31) != (b >> 31) && (rest & 0x7FFFFFFFu) <= 0x7F800000u;
  return differs ? floatBitsToUint(uintBitsToFloat(rest) + uintBitsToFloat(b)) : rest;
}
#endif

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  uint rest = element, a_at = 0, b_at = 0, a_step = 1, b_step = 1;
  for (int axis = 7; axis >= 0; --axis) {
    const uint extent = p.dims[axis], place = rest % extent;
    rest /= extent;
    if ((p.a_extends >> axis & 1u) != 0) a_at += place * a_step, a_step *= extent;
    if ((p.b_extends >> axis & 1u) != 0) b_at += place * b_step, b_step *= extent;
  }
#if defined(ELEMENT_B4)
  if (KIND >= FLOORED_FLOAT_REST) {
    const uint dividend = p.a.at[a_at], divisor = p.b.at[b_at];
    p.y.at[element] = KIND == FLOORED_FLOAT_REST ? floored_float_rest(dividend, divisor) : float_rest(dividend, divisor);
    return;
  }
#endif
  const WIDE a = extended(WIDE(p.a.at[a_at])), b = extended(WIDE(p.b.at[b_at]));
  WIDE y = WIDE(0);
  if (KIND == LEFT || KIND == RIGHT) {
    const uint by = b < WIDE(BITS) ? uint(b) : BITS;  // as an unsigned number, a negative shift is large
    if (by < BITS)
      y = KIND == LEFT ? a << by : is_negative(a) ? WIDE(WIDE_SIGNED(a) >> by) : a >> by;
    else if (KIND == RIGHT && is_negative(a))
      y = ~WIDE(0);
  } else if (b == WIDE(0)) {
    p.fault.site = p.site;
  } else {
    const WIDE divisor = magnitude(b), quotient = magnitude(a) / divisor, left = magnitude(a) - quotient * divisor;
    if (KIND == QUOTIENT)
      y = is_negative(a) != is_negative(b) ? WIDE(0) - quotient : quotient;
    else {
      y = is_negative(a) ? WIDE(0) - left : left;
      if (KIND == FLOORED_REST && left != WIDE(0) && is_negative(a) != is_negative(b)) y += b;
    }
  }
  p.y.at[element] = WORD(y);
}
