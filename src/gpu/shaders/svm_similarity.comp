// Support vector machines. Each invocation computes the kernel function of one row and one support vector.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "functions.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KERNEL = 0;  // as numbered in kernels::SvmKernel::Type
const uint POLY = 1, RBF = 2, SIGMOID = 3;

layout(push_constant, scalar) uniform Push {
  Elements y;        // shape [rows, stride]
  Elements x;        // shape [rows, columns]
  Elements vectors;  // shape [columns, stride]
  uint rows, columns, vector_count, stride;
  float gamma, coef0, degree;
} p;

NUMBER power(NUMBER base) {
  if (p.degree < 0 || p.degree > 16 || p.degree != floor(p.degree)) {
    if (base < 0) return base * 0 / 0;
    return base == 0 ? (p.degree > 0 ? NUMBER(0) : 1 / base) : exp_of(NUMBER(p.degree) * log_of(base));
  }
  NUMBER result = 1;
  for (uint left = uint(p.degree); left > 0; --left) result *= base;
  return result;
}
NUMBER tanh_of(NUMBER x) {
  const NUMBER magnitude = abs(x), e = exp_of(-2 * magnitude), y = magnitude < NUMBER(0.001) ? magnitude : (1 - e) / (1 + e);
  return x < 0 ? -y : y;
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.rows * p.vector_count) return;
  const uint row = i / p.vector_count, v = i % p.vector_count;
  NUMBER sum = 0;
  for (uint column = 0; column < p.columns; ++column) {
    const NUMBER x = p.x.at[row * p.columns + column], w = p.vectors.at[column * p.stride + v];
    sum = KERNEL == RBF ? fma(x - w, x - w, sum) : fma(x, w, sum);
  }
  const NUMBER gamma = NUMBER(p.gamma), coef0 = NUMBER(p.coef0);
  if (KERNEL == RBF) sum = exp_of(-gamma * sum);
  if (KERNEL == POLY) sum = power(fma(gamma, sum, coef0));
  if (KERNEL == SIGMOID) sum = tanh_of(fma(gamma, sum, coef0));
  p.y.at[row * p.stride + v] = sum;
}
