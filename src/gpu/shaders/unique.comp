// Unique numbers of a row, from its items, which are sorted by value. A group is a run of items with equal keys.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"
#include "items.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint STAGE = 0;
const uint COUNT = 0;    // counts the groups that begin in each part
const uint GROUPS = 1;   // finds the group of each item, and the first item of each group
const uint ORDER = 2;    // makes an item for each group, to sort groups by first occurrence
const uint WRITE = 3;    // writes the outputs with an element per group
const uint INVERSE = 4;  // writes the output with an element per number

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Places { uvec2 at[]; };  // numbers of 64 bits

layout(push_constant, scalar) uniform Push {
  Items items, order;             // order: items of the groups; null: groups stay in the order of their values
  Ints counts;                    // number of groups that begin in each part
  Ints groups, firsts, places;    // groups: a number per item; firsts, places: a number per group
  Words y, x;                     // y may be null, as may the three outputs below
  Places indices, inverse, numbers;
  uint count, words;              // elements of the row; words per element
  uint parts, part;               // number of parts; items per part, a multiple of 256
  uint total, padded;             // number of groups; number of their items, a power of two
  uint is_ordered;                // 1: `order` is used
  uint outputs;                   // bit i: output i exists
} p;

shared uint sums[256];

bool begins(uint i) {
  if (i >= p.count) return false;
  if (i == 0) return true;
  const Item a = p.items.at[i - 1], b = p.items.at[i];
  return a.high != b.high || a.low != b.low;
}

uint sum_up_to(bool mark) {
  const uint own = gl_LocalInvocationIndex;
  sums[own] = mark ? 1 : 0;
  barrier();
  for (uint reach = 1; reach < 256; reach *= 2) {
    const uint before = own >= reach ? sums[own - reach] : 0;
    barrier();
    sums[own] += before;
    barrier();
  }
  return sums[own];
}

void main() {
  const uint group = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex, i = group * 256 + own;
  if (STAGE == COUNT || STAGE == GROUPS) {
    if (group >= p.parts) return;
    uint next = 0;
    for (uint g = 0; STAGE == GROUPS && g < group; ++g) next += p.counts.at[g];
    for (uint first = group * p.part; first < (group + 1) * p.part; first += 256) {
      const uint item = first + own;
      const bool mark = begins(item);
      const uint place = next + sum_up_to(mark) - 1;
      next += sums[255];
      barrier();
      if (STAGE == COUNT || item >= p.count) continue;
      p.groups.at[item] = place;
      if (mark) p.firsts.at[place] = item;
    }
    if (STAGE == COUNT && own == 0) p.counts.at[group] = next;
  } else if (STAGE == ORDER) {
    if (i < p.padded) p.order.at[i] = Item(i < p.total ? p.items.at[p.firsts.at[i]].index : 0xFFFFFFFFu, 0, i);
  } else if (STAGE == WRITE) {
    if (i >= p.total) return;
    const uint from = p.is_ordered != 0 ? p.order.at[i].index : i, first = p.firsts.at[from];
    const uint end = from + 1 < p.total ? p.firsts.at[from + 1] : p.count, at = p.items.at[first].index;
    p.places.at[from] = i;
    if ((p.outputs & 1u) != 0)
      for (uint w = 0; w < p.words; ++w) p.y.at[i * p.words + w] = p.x.at[at * p.words + w];
    if ((p.outputs & 2u) != 0) p.indices.at[i] = uvec2(at, 0);
    if ((p.outputs & 8u) != 0) p.numbers.at[i] = uvec2(end - first, 0);
  } else if (i < p.count) {
    p.inverse.at[p.items.at[i].index] = uvec2(p.places.at[p.groups.at[i]], 0);
  }
}
