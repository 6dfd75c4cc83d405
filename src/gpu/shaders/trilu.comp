// Trilu. Each invocation writes one word, which is 0 outside the triangle that is kept.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Words y, x;
  uint count, words;  // words of y; words per element
  uint rows, columns;
  int k;
  uint upper;
} p;

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.count) return;
  const uint element = i / p.words;
  const int beyond = int(element % p.columns) - int(element / p.columns % p.rows);
  if (p.upper != 0 ? beyond >= p.k : beyond <= p.k)
    p.y.at[i] = p.x.at[i];
  else
    p.y.at[i] = WORD(0);
}
