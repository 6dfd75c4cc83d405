// ScatterElements and ScatterND: makes an item of each tuple of indices, which is then sorted by the slice to which the tuple refers.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "items.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Items items;
  Indices indices;
  Fault fault;          // receives `site` if an index is outside of its axis
  uint count, padded;   // number of tuples, and number of items
  uint depth;           // number of indices in a tuple
  uint index_words;     // 32-bit words of an index: 1 or 2
  uint site;
  uvec4 dims, steps;    // extents of the array of tuples, innermost last; number of slices by which each of its axes moves the target
  ivec4 extents;        // extents of the axes to which a tuple's indices belong
  uvec4 strides;        // strides of these axes, in slices
} p;

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.padded) return;
  uint target = 0xFFFFFFFFu;  // this target comes after all slices in the sorted order
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
      // A 64-bit index fits into 32 bits if its upper half consists of copies of the sign.
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
