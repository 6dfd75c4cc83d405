// ScatterElements and ScatterND: makes an item for each tuple of indices. The items are then sorted by the slice that the tuple refers to.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "items.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Items items;
  Indices indices;
  Fault fault;          // set to the error number `site` if an index is out of range
  uint count, padded;   // number of tuples; number of items, a power of two
  uint depth;           // indices per tuple
  uint index_words;     // 32-bit words per index: 1 or 2
  uint site;
  uvec4 dims, steps;    // extents of the array of tuples, innermost last; distance, in slices, per step along each
  ivec4 extents;        // extents of the axes that the indices of a tuple refer to
  uvec4 strides;        // strides of these axes, in slices
} p;

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.padded) return;
  uint target = 0xFFFFFFFFu;  // sorted after all slices
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
      // A 64-bit index fits into 32 bits if its upper half consists of copies of the sign bit.
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
