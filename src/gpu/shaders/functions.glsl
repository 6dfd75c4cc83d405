// Exponential functions and logarithms in NUMBER (float or double). GLSL has none for double; the errors of these are at most 1e-15.
#if defined(ELEMENT_F64)
double power_of_two(int exponent) { return packDouble2x32(uvec2(0, uint(1023 + exponent) << 20)); }

double exp_of(double x) {
  if (isnan(x)) return x;
  const double infinity = packDouble2x32(uvec2(0, 0x7FF00000u));
  if (x > 709.782712893384LF) return infinity;
  if (x < -745.1332191019412LF) return 0;
  const double k = roundEven(x * 1.4426950408889634LF);
  const double r = fma(-k, 1.90821492927058770002e-10LF, fma(-k, 6.93147180369123816490e-01LF, x));
  double sum = 1;  // Taylor series: exp(r) = 1 + r (1 + r/2 (1 + r/3 (...)))
  for (int i = 14; i > 0; --i) sum = fma(sum, r / double(i), 1.0LF);
  const int n = int(k), half_n = n / 2;  // multiplies by 2^n in two steps, since 2^n itself may be too small for a double
  return sum * power_of_two(half_n) * power_of_two(n - half_n);
}

double log_of(double x) {
  const double infinity = packDouble2x32(uvec2(0, 0x7FF00000u));
  if (isnan(x) || x == infinity) return x;
  if (x < 0) return infinity - infinity;
  if (x == 0) return -infinity;
  int exponent = -1023;
  if (x < 2.2250738585072014e-308LF) x *= power_of_two(54), exponent -= 54;
  uvec2 words = unpackDouble2x32(x);
  exponent += int(words.y >> 20);
  words.y = words.y & 0xFFFFFu | 0x3FF00000u;
  double m = packDouble2x32(words);
  if (m > 1.4142135623730951LF) m *= 0.5LF, ++exponent;
  const double s = (m - 1) / (m + 1), z = s * s;  // uses log m = 2 artanh s
  double sum = 0;
  for (int i = 23; i > 1; i -= 2) sum = fma(sum, z, 1.0LF / double(i));
  const double e = double(exponent);
  return fma(e, 6.93147180369123816490e-01LF, fma(2 * s * z, sum, fma(e, 1.90821492927058770002e-10LF, 2 * s)));
}
#else
#define exp_of(x) exp(x)
#define log_of(x) log(x)
#endif

#if !defined(ELEMENT_I32) && !defined(ELEMENT_I64)
// Returns x to the power y; x must not be negative. GLSL's pow() may return anything for NaN and infinity, and for 0 with some y.
NUMBER power_of(NUMBER x, NUMBER y) {
  if (y == NUMBER(0)) return NUMBER(1);
  if (isnan(x)) return x;
  if (x == NUMBER(0) || isinf(x)) return y > NUMBER(0) ? x : NUMBER(1) / x;
#if defined(ELEMENT_F64)
  return exp_of(y * log_of(x));
#else
  return pow(x, y);
#endif
}
#endif
