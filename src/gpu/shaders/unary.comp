// Functions of one float64 number.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "functions.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FUNCTION = 0;
// The numbers of functions, which are their positions in kWideFunctions (gpu/placing.cpp).
const uint EXP = 0, LOG = 1, SQRT = 2, RECIPROCAL = 3, SIGMOID = 4, TANH = 5, SOFTPLUS = 6, RELU = 7, FLOOR = 8, CEIL = 9, ROUND = 10;

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint count;
} p;

NUMBER function_of(NUMBER x) {
  switch (FUNCTION) {
    case EXP: return exp_of(x);
    case LOG: return log_of(x);
    case SQRT: return sqrt(x);
    case RECIPROCAL: return 1 / x;
    case SIGMOID: {
      const NUMBER e = exp_of(-abs(x));
      return (x < 0 ? e : NUMBER(1)) / (1 + e);
    }
    case TANH: {
      const NUMBER z = x * x;
      if (z < NUMBER(1e-4)) return x * (1 - z * (NUMBER(1) / 3 - z * (NUMBER(2) / 15 - z * (NUMBER(17) / 315 - z * NUMBER(62) / 2835))));
      const NUMBER e = exp_of(-2 * abs(x)), y = (1 - e) / (1 + e);
      return x < 0 ? -y : y;
    }
    case SOFTPLUS: {
      const NUMBER e = exp_of(-abs(x));
      precise NUMBER one_more = 1 + e, rounded = one_more - 1;
      const NUMBER tail = rounded == 0 ? e : log_of(one_more) * (e / rounded);  // log(1 + e), corrected by the rounding error of the sum
      return (x > 0 ? x : NUMBER(0)) + tail;
    }
    case RELU: return x < 0 ? NUMBER(0) : x;
    case FLOOR: return floor(x);
    case CEIL: return ceil(x);
    default: return roundEven(x);
  }
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i < p.count) p.y.at[i] = function_of(p.x.at[i]);
}
