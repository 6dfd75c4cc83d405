// Functions of one float64 number.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "functions.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FUNCTION = 0;
// Numbers as in kernels::Unary and, from 100 on, in gpu/placing.cpp.
const uint RELU = 1, LEAKY_RELU = 3, THRESHOLDED_RELU = 4, SIGMOID = 5, HARD_SIGMOID = 6, TANH = 7, ELU = 9, SELU = 10, CELU = 11,
           SOFTPLUS = 12, SOFTSIGN = 13, GELU = 15, GELU_TANH = 16, SILU = 18, HARD_SWISH = 19, MISH = 20, EXP = 21, LOG = 22, ERF = 23,
           SQRT = 24, RECIPROCAL = 25, SIN = 31, COS = 32, TAN = 33, ASIN = 34, ACOS = 35, ATAN = 36, SINH = 37, COSH = 38, ASINH = 39,
           ACOSH = 40, ATANH = 41;
const uint FLOOR = 100, CEIL = 101, ROUND = 102;

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint count;
  float a, b;  // parameters of the function
} p;

const double HALF_PI = 1.57079632679489661923LF, LOG_2 = 0.693147180559945309417LF;

double signed_like(double magnitude, double x) { return x < 0 ? -magnitude : magnitude; }
double expm1_of(double x) {
  if (abs(x) > 0.3LF) return exp_of(x) - 1;
  double sum = 1;  // Taylor series of exp(x) - 1: x (1 + x/2 (1 + x/3 (...)))
  for (int i = 16; i > 1; --i) sum = fma(sum, x / double(i), 1.0LF);
  return x * sum;
}
double log1p_of(double x) {  // log(1 + x), corrected for the rounding of 1 + x
  precise double one_more = 1 + x, rounded = one_more - 1;
  return rounded == 0 || isinf(x) ? x : log_of(one_more) * (x / rounded);
}
double sigmoid(double x) {
  const double e = exp_of(-abs(x));
  return (x < 0 ? e : 1.0LF) / (1 + e);
}
double tanh_of(double x) {
  const double e = expm1_of(-2 * abs(x));
  return signed_like(-e / (2 + e), x);
}
double softplus(double x) { return (x > 0 ? x : 0.0LF) + log1p_of(exp_of(-abs(x))); }
double erf_of(double x) {
  if (isnan(x)) return x;
  if (abs(x) > 6) return signed_like(1, x);
  double sum = 0, term = 1;  // exp(-x^2) times a series of positive terms
  for (int i = 1; i < 130; ++i) {
    sum += term;
    term *= 2 * x * x / double(2 * i + 1);
  }
  return 1.12837916709551257390LF * x * exp_of(-x * x) * sum;
}
double atan_of(double x) {
  if (isnan(x)) return x;
  const double magnitude = abs(x);
  double t = magnitude > 1 ? 1 / magnitude : magnitude, more = 0;
  if (t > 0.41421356237309504880LF) t = (t - 1) / (t + 1), more = HALF_PI / 2;
  double sum = 0;
  for (int i = 45; i > 0; i -= 2) sum = fma(-sum, t * t, 1 / double(i));
  const double angle = more + t * sum;
  return signed_like(magnitude > 1 ? HALF_PI - angle : angle, x);
}
// Returns the sine of x plus `turned` quarter turns.
double sine(double x, int turned) {
  const double n = roundEven(x * 0.636619772367581343076LF);
  // A product of half of the quotient's bits with 33 bits of the constant is exact, even on devices whose fma rounds twice.
  const double high = trunc(n / 65536) * 65536, low = n - high;
  precise double r = x - high * 1.57079632673412561417LF - low * 1.57079632673412561417LF;
  r = r - high * 6.07710050630396597660e-11LF - low * 6.07710050630396597660e-11LF;
  r = r - n * 2.02226624879595063154e-21LF;
  const int quadrant = int(n - 4 * floor(n / 4)) + turned;
  const double z = r * r;
  double s = 1, c = 1;
  for (int i = 20; i > 0; i -= 2) {
    s = 1 - s * z / double(i * (i + 1));
    c = 1 - c * z / double(i * (i - 1));
  }
  const double y = (quadrant & 1) != 0 ? c : s * r;
  return (quadrant & 2) != 0 ? -y : y;
}
double exp_half(double x) {  // exp(x) / 2, also where exp(x) overflows
  const double root = exp_of(x / 2);
  return root / 2 * root;
}

double function_of(double x) {
  const double a = double(p.a), b = double(p.b), magnitude = abs(x);
  switch (FUNCTION) {
    case RELU: return x < 0 ? 0.0LF : x;
    case LEAKY_RELU: return x < 0 ? a * x : x;
    case THRESHOLDED_RELU: return x > a ? x : 0.0LF;
    case SIGMOID: return sigmoid(x);
    case HARD_SIGMOID: return clamp(a * x + b, 0.0LF, 1.0LF);
    case TANH: return tanh_of(x);
    case ELU: return x < 0 ? a * expm1_of(x) : x;
    case SELU: return b * (x < 0 ? a * expm1_of(x) : x);
    case CELU: return max(x, 0.0LF) + min(0.0LF, a * expm1_of(x / a));
    case SOFTPLUS: return softplus(x);
    case SOFTSIGN: return x / (1 + magnitude);
    case GELU: return x / 2 * (1 + erf_of(x * 0.707106781186547524401LF));
    case GELU_TANH: return x * sigmoid(x * (1.59576912160573071176LF + 0.0713548162726002527LF * x * x));
    case SILU: return x * sigmoid(a * x);
    case HARD_SWISH: return x * clamp(x / 6 + 0.5LF, 0.0LF, 1.0LF);
    case MISH: return x * tanh_of(softplus(x));
    case EXP: return exp_of(x);
    case LOG: return log_of(x);
    case ERF: return erf_of(x);
    case SQRT: return sqrt(x);
    case RECIPROCAL: return 1 / x;
    case SIN: return x == 0 ? x : sine(x, 0);
    case COS: return sine(x, 1);
    case TAN: return x == 0 ? x : sine(x, 0) / sine(x, 1);
    case ASIN: return atan_of(x / sqrt((1 - x) * (1 + x)));
    case ACOS: return 2 * atan_of(sqrt((1 - x) / (1 + x)));
    case ATAN: return atan_of(x);
    case SINH: {
      if (magnitude > 700) return signed_like(exp_half(magnitude), x);
      const double e = expm1_of(magnitude);
      return signed_like((e + e / (e + 1)) / 2, x);
    }
    case COSH: return exp_half(magnitude) + exp_of(-magnitude) / 2;
    case ASINH: {
      const double square = x * x;
      return signed_like(magnitude > 1e8LF ? log_of(magnitude) + LOG_2 : log1p_of(magnitude + square / (1 + sqrt(square + 1))), x);
    }
    case ACOSH: return x > 1e8LF ? log_of(x) + LOG_2 : log1p_of(x - 1 + sqrt((x - 1) * (x + 1)));
    case ATANH: return signed_like(log1p_of(2 * magnitude / (1 - magnitude)) / 2, x);
    case FLOOR: return floor(x);
    case CEIL: return ceil(x);
    default: return roundEven(x);
  }
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i < p.count) p.y.at[i] = function_of(p.x.at[i]);
}
