// LpNormalization and Hardmax along the middle axis of [outer, extent, inner]. A group of invocations computes a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
const uint L1 = 0, L2 = 1, HARDMAX = 2;

layout(push_constant, scalar) uniform Push {
  Elements y, x;  // y may be x
  uint outer, extent, inner;
} p;

shared NUMBER parts[256];
shared uint places[256];

// Returns true if element a is the maximum rather than b. NaN is the largest, and of equal elements the first one is the maximum.
bool precedes(NUMBER a, uint a_place, NUMBER b, uint b_place) {
  if (b_place == 0xFFFFFFFFu || a_place == 0xFFFFFFFFu) return b_place == 0xFFFFFFFFu;
  if (isnan(a) || isnan(b)) return isnan(a) && (!isnan(b) || a_place < b_place);
  return a > b || a == b && a_place < b_place;
}

void main() {
  const uint row = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (row >= p.outer * p.inner) return;
  const uint start = row / p.inner * p.extent * p.inner + row % p.inner;
  NUMBER result = NUMBER(0);
  uint place = 0xFFFFFFFFu;
  for (uint k = own; k < p.extent; k += 256) {
    const NUMBER x = to_number(p.x.at[start + k * p.inner]);
    if (KIND != HARDMAX)
      result += KIND == L1 ? abs(x) : x * x;
    else if (precedes(x, k, result, place))
      result = x, place = k;
  }
  parts[own] = result;
  places[own] = place;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (own < reach) {
      if (KIND != HARDMAX)
        parts[own] += parts[own + reach];
      else if (precedes(parts[own + reach], places[own + reach], parts[own], places[own]))
        parts[own] = parts[own + reach], places[own] = places[own + reach];
    }
    barrier();
  }
  const NUMBER norm = KIND == L2 ? sqrt(parts[0]) : parts[0];
  for (uint k = own; k < p.extent; k += 256) {
    const uint at = start + k * p.inner;
    NUMBER y = NUMBER(0);
    if (KIND == HARDMAX)
      y = NUMBER(k == places[0] ? 1 : 0);
    else if (norm != NUMBER(0))
      y = to_number(p.x.at[at]) / norm;
    p.y.at[at] = to_element(y);
  }
}
