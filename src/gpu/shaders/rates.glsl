// Functions for the updates of optimizers. narrowed() converts a double, given by its bits, to the nearest float or to an adjacent one.
// Subnormal doubles become 0.
float narrowed(uint low, uint high) {
  const int exponent = int(high >> 20 & 0x7FFu);
  if (exponent == 0) return 0;
  const float fraction = 1 + float(high & 0xFFFFFu) / 1048576.0 + float(low) / 4503599627370496.0;
  return ldexp(high >> 31 != 0 ? -fraction : fraction, exponent - 1023);
}
// Returns 1 - exp(x) for x <= 0, without cancellation near 0.
float complement(float x) {
  if (x < -0.25) return 1 - exp(x);
  float sum = 1, term = 1;
  for (int k = 2; k < 9; ++k) {
    term *= x / float(k);
    sum += term;
  }
  return -x * sum;
}
