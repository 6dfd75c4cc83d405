// ScatterElements and ScatterND: the item of each tuple of indices, with the slice that it names, for sorting.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "items.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Items items;
  Indices indices;
  Fault fault;          // gets `site` where an index is outside of its axis
  uint count, padded;   // tuples, and items
  uint depth;           // indices of a tuple
  uint index_words;     // 2: the indices have 64 bits
  uint site;
  uvec4 dims, steps;    // extents of the tuples, innermost last, and slices from one place to the next
  ivec4 extents;        // of the axes that a tuple's indices are for
  uvec4 strides;        // slices from one index to the next
} p;

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.padded) return;
  uint target = 0xFFFFFFFFu;  // of none
  if (i < p.count) {
    uint at = 0, rest = i;
    for (int axis = 3; axis >= 0; --axis) {
      at += rest % p.dims[axis] * p.steps[axis];
      rest /= p.dims[axis];
    }
    bool is_inside = true;
    for (uint k = 0; k < p.depth; ++k) {
      const uint place = (i * p.depth + k) * p.index_words;
      const int given = p.indices.at[place], extent = p.extents[k], index = given < 0 ? given + extent : given;
      // The upper half of a 64-bit index that fits has the sign's bits only.
      is_inside = is_inside && (p.index_words == 1 || p.indices.at[place + 1] == (given < 0 ? -1 : 0)) && index >= 0 && index < extent;
      at += uint(index) * p.strides[k];
    }
    if (is_inside)
      target = at;
    else
      p.fault.site = p.site;
  }
  p.items.at[i] = Item(target, 0, i);
}
