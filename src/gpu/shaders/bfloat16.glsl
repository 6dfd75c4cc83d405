uint rounded_word(float x) {  // rounds to nearest, ties to even; keeps NaN
  const uint word = floatBitsToUint(x);
  return (isnan(x) ? word | 0x400000u : word + 0x7FFFu + (word >> 16 & 1u)) >> 16;
}
