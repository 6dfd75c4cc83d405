// ReverseSequence. Each invocation copies one word: position t of a sequence of length n is read from position n - 1 - t.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Lengths { int at[]; };  // 64-bit
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words y, x;
  Lengths lengths;
  Fault fault;  // set to the error number `site` if a length is not in [0, time]
  uint count, time, time_stride, batch, batch_stride, site;  // count and strides are in words
} p;

void main() {
  const uint word = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (word >= p.count) return;
  const int t = int(word / p.time_stride % p.time), sequence = int(word / p.batch_stride % p.batch);
  int length = p.lengths.at[2 * sequence];
  if (p.lengths.at[2 * sequence + 1] != 0 || length < 0 || length > int(p.time)) {
    p.fault.site = p.site;
    length = 0;
  }
  const int from = t < length ? length - 1 - t : t;
  p.y.at[word] = p.x.at[uint(int(word) + (from - t) * int(p.time_stride))];
}
