// Gather along one axis: y[o, i, n] = x[o, indices[i], n]. Elements are words of 1, 2 or 4 bytes; longer ones are several.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require

#if defined(ELEMENT_B1)
#define WORD uint8_t
#elif defined(ELEMENT_B2)
#define WORD uint16_t
#else
#define WORD uint
#endif

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Words { WORD at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words y, x;
  Indices indices;
  Fault fault;            // gets `site` where an index is outside of the axis
  uint count;             // elements of y
  uint num_indices, inner;
  int extent;             // of x along the axis
  uint index_words;       // 2: the indices have 64 bits
  uint site;
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uint n = element % p.inner, i = element / p.inner % p.num_indices, outer = element / p.inner / p.num_indices;
  const int given = p.indices.at[i * p.index_words];
  const int index = given < 0 ? given + p.extent : given;
  // The upper half of a 64-bit index that fits has the sign's bits only.
  const bool is_short = p.index_words == 1 || p.indices.at[i * 2 + 1] == (given < 0 ? -1 : 0);
  if (!is_short || index < 0 || index >= p.extent) {
    p.fault.site = p.site;
    p.y.at[element] = WORD(0);  // the host may read it before it hears of the fault
    return;
  }
  p.y.at[element] = p.x.at[(outer * uint(p.extent) + uint(index)) * p.inner + n];
}
