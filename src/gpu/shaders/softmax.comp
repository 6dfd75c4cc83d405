// Softmax and LogSoftmax along the middle axis of [outer, extent, inner]. Each group of invocations computes one row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "functions.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint LOGARITHM = 0;

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint outer, extent, inner;
} p;

shared NUMBER parts[256];

NUMBER over_group(NUMBER value, bool maximum) {
  const uint own = gl_LocalInvocationIndex;
  parts[own] = value;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (own < reach) parts[own] = maximum ? max(parts[own], parts[own + reach]) : parts[own] + parts[own + reach];
    barrier();
  }
  const NUMBER result = parts[0];
  barrier();
  return result;
}

void main() {
  const uint row = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (row >= p.outer * p.inner) return;
  const uint start = row / p.inner * p.extent * p.inner + row % p.inner;
  NUMBER largest = -1.0 / 0.0;
  for (uint k = own; k < p.extent; k += 256) largest = max(largest, to_number(p.x.at[start + k * p.inner]));
  largest = over_group(largest, true);
  NUMBER sum = 0;
  for (uint k = own; k < p.extent; k += 256) sum += exp_of(to_number(p.x.at[start + k * p.inner]) - largest);
  sum = over_group(sum, false);
  const NUMBER shift = log_of(sum);
  for (uint k = own; k < p.extent; k += 256) {
    const NUMBER x = to_number(p.x.at[start + k * p.inner]) - largest;
    p.y.at[start + k * p.inner] = to_element(LOGARITHM != 0 ? x - shift : exp_of(x) / sum);
  }
}
