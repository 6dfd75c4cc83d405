// Gather, GatherElements, GatherND: an element of y is that of x at the place of y's element, moved by a tuple of indices.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words y, x;
  Indices indices;
  Fault fault;            // gets `site` where an index is outside of its axis
  uint count;             // elements of y
  uint slice, tuples;     // neighbours in y that share a tuple, and tuples, which repeat
  uint depth;             // indices of a tuple
  uint index_words;       // 2: the indices have 64 bits
  uint site;
  uvec4 dims, steps;      // extents of y, innermost last, and elements of x from one place to the next
  ivec4 extents;          // of the axes that a tuple's indices are for
  uvec4 strides;          // elements of x from one index to the next
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  uint at = 0, rest = element;
  for (int axis = 3; axis >= 0; --axis) {
    at += rest % p.dims[axis] * p.steps[axis];
    rest /= p.dims[axis];
  }
  const uint tuple = element / p.slice % p.tuples * p.depth;
  for (uint k = 0; k < p.depth; ++k) {
    const uint place = (tuple + k) * p.index_words;
    const int given = p.indices.at[place], extent = p.extents[k];
    const int index = given < 0 ? given + extent : given;
    // The upper half of a 64-bit index that fits has the sign's bits only.
    const bool is_short = p.index_words == 1 || p.indices.at[place + 1] == (given < 0 ? -1 : 0);
    if (!is_short || index < 0 || index >= extent) {
      p.fault.site = p.site;
      p.y.at[element] = WORD(0);  // the host may read it before it hears of the fault
      return;
    }
    at += uint(index) * p.strides[k];
  }
  p.y.at[element] = p.x.at[at];
}
