// Scores of LinearClassifier and LinearRegressor. Each invocation computes one score of one row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements scores;                    // shape [rows, stride]
  Elements x;                         // shape [rows, columns]
  Elements coefficients, intercepts;  // shapes [count, columns] and [count]
  uint rows, columns, count, stride;
  uint has_intercepts;
} p;

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.rows * p.count) return;
  const uint row = i / p.count, k = i % p.count;
  NUMBER sum = 0, block = 0;  // sums 512 terms at a time, then these sums, for accuracy
  for (uint column = 0; column < p.columns; ++column) {
    block = fma(p.x.at[row * p.columns + column], p.coefficients.at[k * p.columns + column], block);
    if (column % 512 != 511) continue;
    sum += block;
    block = 0;
  }
  sum += block;
  p.scores.at[row * p.stride + k] = p.has_intercepts != 0 ? sum + p.intercepts.at[k] : sum;
}
