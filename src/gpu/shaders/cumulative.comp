// CumSum and CumProd along the middle axis of [outer, extent, inner]. A group of invocations computes a row. Each of its invocations
// computes one part of the row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint PRODUCT = 0;

layout(push_constant, scalar) uniform Push {
  Elements y, x;  // y may be in the memory of x
  uint outer, extent, inner;
  uint exclusive, reverse;
} p;

shared NUMBER totals[256];

NUMBER joined(NUMBER a, NUMBER b) { return PRODUCT != 0 ? a * b : a + b; }

void main() {
  const uint row = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (row >= p.outer * p.inner) return;
  const uint start = row / p.inner * p.extent * p.inner + row % p.inner, part = (p.extent + 255) / 256;
  const uint first = min(own * part, p.extent), end = min(first + part, p.extent);
  NUMBER total = NUMBER(PRODUCT != 0 ? 1 : 0);
  for (uint k = first; k < end; ++k) total = joined(total, to_number(p.x.at[start + (p.reverse != 0 ? p.extent - 1 - k : k) * p.inner]));
  totals[own] = total;
  barrier();
  for (uint reach = 1; reach < 256; reach *= 2) {
    const NUMBER before = own >= reach ? totals[own - reach] : NUMBER(0);
    barrier();
    if (own >= reach) totals[own] = joined(before, totals[own]);
    barrier();
  }
  total = own > 0 ? totals[own - 1] : NUMBER(PRODUCT != 0 ? 1 : 0);
  for (uint k = first; k < end; ++k) {
    const uint at = start + (p.reverse != 0 ? p.extent - 1 - k : k) * p.inner;
    const NUMBER before = total;
    total = joined(total, to_number(p.x.at[at]));
    p.y.at[at] = to_element(p.exclusive != 0 ? before : total);
  }
}
