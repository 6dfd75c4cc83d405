// 64-bit integers as pairs of 32-bit words, the lower one first. So devices without 64-bit arithmetic can use them.
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Longs { ivec2 at[]; };

ivec2 to_long(int x) { return ivec2(x, x >> 31); }
// Returns the number in 32 bits, clamped to the range of int.
int to_int(ivec2 x) { return x.y == x.x >> 31 ? x.x : x.y < 0 ? int(0x80000000u) : 0x7FFFFFFF; }
ivec2 plus(ivec2 a, int b) {
  uint carry;
  const uint low = uaddCarry(uint(a.x), uint(b), carry);
  return ivec2(int(low), a.y + (b >> 31) + int(carry));
}
