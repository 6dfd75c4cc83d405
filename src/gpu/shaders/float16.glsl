uint half_word(float x) {  // rounds to nearest, ties to even; in packHalf2x16(), rounding depends on the driver
  const uint word = floatBitsToUint(x), sign = word >> 16 & 0x8000u, magnitude = word & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;
  if (magnitude >= 0x47800000u) return sign | 0x7C00u;  // numbers from 65,536 on become infinity
  if (magnitude < 0x38800000u) return sign | uint(roundEven(uintBitsToFloat(magnitude) * 16777216.0));  // subnormal result
  return sign | (magnitude + 0xFFFu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
}
