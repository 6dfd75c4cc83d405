// MaxUnpool. Each invocation writes one word of y: that of the last item whose index is its element, or 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"
#include "items.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };  // 64-bit
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words y, x;
  Items items;  // sorted by the element of y that they refer to
  Indices indices;
  Fault fault;  // set to the error number `site` if an index is negative
  uint count, words, num_items, site;  // count: words of y
} p;

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.count) return;
  const uint element = i / p.words;
  uint low = 0, high = p.num_items;  // the first item of a later element is in [low, high]
  while (low < high) {
    const uint middle = (low + high) / 2;
    if (p.items.at[middle].high <= element)
      low = middle + 1;
    else
      high = middle;
  }
  p.y.at[i] = WORD(0);
  if (low == 0 || p.items.at[low - 1].high != element) return;
  const uint from = p.items.at[low - 1].index;
  if (p.indices.at[2 * from + 1] < 0) p.fault.site = p.site;
  p.y.at[i] = p.x.at[from * p.words + i % p.words];
}
