// Multiplies and adds at the device's peak rate, to measure it: eight independent chains of vector operations hide each other's latency.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y;
  uint rounds;
  float factor, summand;
} p;

void main() {
  vec4 sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = vec4(gl_GlobalInvocationID.x + i);
  for (uint round = 0; round < p.rounds; ++round)
    for (int i = 0; i < 8; ++i) sums[i] = fma(sums[i], vec4(p.factor), vec4(p.summand));
  vec4 sum = vec4(0);
  for (int i = 0; i < 8; ++i) sum += sums[i];
  if (sum.x + sum.y + sum.z + sum.w == p.summand) p.y.at[0] = sum.x;  // almost never true, but it keeps the compiler from removing the loop
}
