// Gather, GatherElements, GatherND. An element of y is read from x at an offset given by its position in y and by a tuple of indices.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words y, x;
  Indices indices;
  Fault fault;            // set to the error number `site` if an index is out of range
  uint count;             // number of elements of y
  uint slice, tuples;     // consecutive elements of y that use one tuple; number of tuples, used cyclically
  uint depth;             // indices per tuple
  uint index_words;       // 32-bit words per index: 1 or 2
  uint site;
  uvec4 dims, steps;      // extents of y, innermost last; distance in x for one step along each of them
  ivec4 extents;          // extents of the axes of x that the indices of a tuple refer to
  uvec4 strides;          // strides of these axes in x, in elements
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
    // A 64-bit index fits into 32 bits if its upper half consists of copies of the sign bit.
    const bool is_short = p.index_words == 1 || p.indices.at[place + 1] == (given < 0 ? -1 : 0);
    if (!is_short || index < 0 || index >= extent) {
      p.fault.site = p.site;
      p.y.at[element] = WORD(0);  // defined contents, as the host may read y before the fault
      return;
    }
    at += uint(index) * p.strides[k];
  }
  p.y.at[element] = p.x.at[at];
}
