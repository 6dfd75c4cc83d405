// ScatterElements and ScatterND. The invocations for a slice's first item apply all updates of the slice, in their order.
#version 460
#extension GL_GOOGLE_include_directive : require
#ifdef REDUCE
#include "elements.glsl"
#else
#include "words.glsl"
#define Elements Words
#endif
#include "items.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;  // if REDUCE: as numbered in ops::Reduction
const uint ADD = 1, MUL = 2, MAXIMUM = 3, MINIMUM = 4;

layout(push_constant, scalar) uniform Push {
  Elements y, updates;
  Items items;          // one item per tuple of indices, sorted by slice
  uint count, slice;    // number of tuples; elements per slice
} p;

#ifdef REDUCE
bool is_nan(NUMBER x) {
#if defined(ELEMENT_I32) || defined(ELEMENT_I64)
  return false;
#else
  return isnan(x);
#endif
}
NUMBER combined(NUMBER a, NUMBER b) {
  if (KIND == ADD) return a + b;
  if (KIND == MUL) return a * b;
  return is_nan(b) || (KIND == MAXIMUM ? b > a : b < a) ? b : a;
}
#endif

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.count * p.slice) return;
  uint at = i / p.slice;
  const uint within = i % p.slice, target = p.items.at[at].high;
  if (target == 0xFFFFFFFFu || at > 0 && p.items.at[at - 1].high == target) return;
  const uint to = target * p.slice + within;
#ifdef REDUCE
  for (; at < p.count && p.items.at[at].high == target; ++at)
    p.y.at[to] = to_element(combined(to_number(p.y.at[to]), to_number(p.updates.at[p.items.at[at].index * p.slice + within])));
#else
  while (at + 1 < p.count && p.items.at[at + 1].high == target) ++at;
  p.y.at[to] = p.updates.at[p.items.at[at].index * p.slice + within];
#endif
}
