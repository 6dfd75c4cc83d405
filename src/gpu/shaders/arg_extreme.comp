// ArgMax and ArgMin along the middle axis of [outer, extent, inner]. A group of invocations computes a row. NaN is treated as the extreme.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint MAXIMUM = 1;

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Places { uvec2 at[]; };  // indices of 64 bits

layout(push_constant, scalar) uniform Push {
  Places y;
  Elements x;
  uint outer, extent, inner;
  uint last;  // of equal elements, selects 1: the last; 0: the first
} p;

shared NUMBER values[256];
shared uint places[256];

bool is_beyond(NUMBER a, NUMBER b) {
#if !defined(ELEMENT_I32) && !defined(ELEMENT_I64)
  if (isnan(a) || isnan(b)) return isnan(a) && !isnan(b);
#endif
  return MAXIMUM != 0 ? a > b : a < b;
}
// Returns true if element `a` with index i is a better result than `b` with index k.
bool is_better(NUMBER a, uint i, NUMBER b, uint k) {
  if (is_beyond(a, b)) return true;
  return !is_beyond(b, a) && (p.last != 0 ? i > k : i < k);
}

void main() {
  const uint row = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (row >= p.outer * p.inner) return;
  const uint start = row / p.inner * p.extent * p.inner + row % p.inner;
  uint place = min(own, p.extent - 1);
  NUMBER best = to_number(p.x.at[start + place * p.inner]);
  for (uint k = own + 256; k < p.extent; k += 256) {
    const NUMBER x = to_number(p.x.at[start + k * p.inner]);
    if (is_better(x, k, best, place)) best = x, place = k;
  }
  values[own] = best;
  places[own] = place;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (own < reach && is_better(values[own + reach], places[own + reach], values[own], places[own])) {
      values[own] = values[own + reach];
      places[own] = places[own + reach];
    }
    barrier();
  }
  if (own == 0) p.y.at[row] = uvec2(places[0], 0);
}
