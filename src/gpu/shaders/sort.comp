// Bitonic sort of rows of items, where the length of a row is a power of two. If LOCAL, a group does all steps within 512 consecutive
// items; otherwise each invocation compares one pair of items.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "items.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint LOCAL = 0;

layout(push_constant, scalar) uniform Push {
  Items items;
  uint count, extent;       // number of all items; items per row
  // LOCAL: a group sorts runs of `first`, then of twice as many, up to `last` items. Otherwise: one step of sorting runs of `last` items,
  // which compares items that are `reach` apart.
  uint first, last, reach;
} p;

shared Item items[512];

bool is_behind(Item a, Item b) {
  if (a.high != b.high) return a.high > b.high;
  if (a.low != b.low) return a.low > b.low;
  return a.index > b.index;
}

void main() {
  const uint group = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (LOCAL == 0) {
    const uint pair = group * 256 + own, i = pair / p.reach * 2 * p.reach + pair % p.reach;
    if (i >= p.count) return;
    const Item a = p.items.at[i], b = p.items.at[i + p.reach];
    if (is_behind(a, b) != ((i % p.extent & p.last) == 0)) return;
    p.items.at[i] = b;
    p.items.at[i + p.reach] = a;
    return;
  }
  const uint start = group * 512;
  if (start >= p.count) return;
  for (uint k = own; k < 512; k += 256)
    if (start + k < p.count) items[k] = p.items.at[start + k];
  for (uint run = p.first; run <= p.last; run *= 2)
    for (uint reach = min(run / 2, 256); reach > 0; reach /= 2) {
      barrier();
      const uint k = own / reach * 2 * reach + own % reach;
      if (start + k >= p.count) continue;
      const Item a = items[k], b = items[k + reach];
      if (is_behind(a, b) != (((start + k) % p.extent & run) == 0)) continue;
      items[k] = b;
      items[k + reach] = a;
    }
  barrier();
  for (uint k = own; k < 512; k += 256)
    if (start + k < p.count) p.items.at[start + k] = items[k];
}
