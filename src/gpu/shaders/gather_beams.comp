// GatherBeams. Each invocation copies one word of the cache, from the row of the beam that the indirection names.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"
#include "longs.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words y, x;
  Numbers beams;
  Longs past;
  Fault fault;                 // set to the error number `site` if a beam or the past's length is out of range
  uint site;
  uint count;                  // number of words of y
  uint heads, extent, size;    // `size`: words per row
  uint num_beams, columns;
} p;

void main() {
  const uint word = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (word >= p.count) return;
  const uint row = word / p.size % p.extent, plane = word / p.size / p.extent, sample_index = plane / p.heads;
  const int past = to_int(p.past.at[0]);
  uint from = sample_index;
  if (past < 0 || past > int(p.columns) || past > int(p.extent)) {
    p.fault.site = p.site;
  } else if (int(row) < past) {
    const int beam = p.beams.at[sample_index * p.columns + row];
    if (beam < 0 || beam >= int(p.num_beams))
      p.fault.site = p.site;
    else
      from = sample_index / p.num_beams * p.num_beams + uint(beam);
  }
  p.y.at[word] = p.x.at[((from * p.heads + plane % p.heads) * p.extent + row) * p.size + word % p.size];
}
