// Normalizer: divides rows by their largest element, by the sum of their magnitudes, or by their Euclidean length. Each group of
// invocations computes one row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint NORM = 0;  // as numbered in ops::Norm
const uint MAX = 0, L1 = 1;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };

layout(push_constant, scalar) uniform Push {
  Floats y;
  Elements x;
  uint rows, columns;
} p;

shared NUMBER parts[256];

NUMBER over_group(NUMBER value, bool adds) {
  const uint own = gl_LocalInvocationIndex;
  parts[own] = value;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (own < reach) {
      const NUMBER a = parts[own], b = parts[own + reach];
      parts[own] = adds ? a + b : b > a ? b : a;
    }
    barrier();
  }
  const NUMBER result = parts[0];
  barrier();
  return result;
}

void main() {
  const uint row = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (row >= p.rows || p.columns == 0) return;
  const uint first = row * p.columns;
  const NUMBER start = p.x.at[first];
  // L1 and L2 compare magnitudes, so they start at 0. A comparison with NaN is false, so NaN never becomes the largest.
  NUMBER largest = NORM == MAX && !isnan(start) ? start : NUMBER(0);
  for (uint k = own; k < p.columns; k += 256) {
    const NUMBER x = NORM == MAX ? p.x.at[first + k] : abs(p.x.at[first + k]);
    if (x > largest) largest = x;
  }
  largest = over_group(largest, false);
  NUMBER divisor = NORM == MAX && isnan(start) ? start : largest;
  if (divisor == 0) divisor = 1;
  NUMBER sum = 1;
  if (NORM != MAX) {  // L1 and L2 sum x / largest, so that squares do not overflow
    sum = 0;
    for (uint k = own; k < p.columns; k += 256) {
      const NUMBER x = abs(p.x.at[first + k]) / divisor;
      sum += NORM == L1 ? x : x * x;
    }
    sum = over_group(sum, true);
    if (NORM != L1) sum = sqrt(sum);
    if (sum == 0 || isinf(divisor)) sum = 1;
  }
  for (uint k = own; k < p.columns; k += 256) p.y.at[first + k] = float(p.x.at[first + k] / divisor / sum);
}
