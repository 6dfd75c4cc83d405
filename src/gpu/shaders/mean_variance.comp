// MeanVarianceNormalization over any axes. A group of invocations computes all elements that share a mean.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, x;  // y may be x
  uint groups, terms;           // number of means; elements per mean
  uvec4 kept, kept_step;        // extents of the kept axes, innermost last; their strides in x
  uvec4 reduced, reduced_step;  // extents of the reduced axes; their strides in x
} p;

shared NUMBER parts[256];

uint offset_of(uint place, uvec4 extents, uvec4 steps) {
  uint offset = 0;
  for (int axis = 3; axis >= 0; --axis) {
    offset += place % extents[axis] * steps[axis];
    place /= extents[axis];
  }
  return offset;
}

NUMBER mean_over_group(NUMBER sum) {
  const uint own = gl_LocalInvocationIndex;
  parts[own] = sum;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (own < reach) parts[own] += parts[own + reach];
    barrier();
  }
  const NUMBER result = parts[0] / NUMBER(p.terms);
  barrier();
  return result;
}

void main() {
  const uint group = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (group >= p.groups) return;
  const uint start = offset_of(group, p.kept, p.kept_step);
  NUMBER sum = NUMBER(0), squares = NUMBER(0);
  for (uint k = own; k < p.terms; k += 256) sum += to_number(p.x.at[start + offset_of(k, p.reduced, p.reduced_step)]);
  const NUMBER mean = mean_over_group(sum);
  for (uint k = own; k < p.terms; k += 256) {
    const NUMBER x = to_number(p.x.at[start + offset_of(k, p.reduced, p.reduced_step)]) - mean;
    squares += x * x;
  }
  const NUMBER deviation = sqrt(mean_over_group(squares)) + NUMBER(1e-9);
  for (uint k = own; k < p.terms; k += 256) {
    const uint at = start + offset_of(k, p.reduced, p.reduced_step);
    p.y.at[at] = to_element((to_number(p.x.at[at]) - mean) / deviation);
  }
}
