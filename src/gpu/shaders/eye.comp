// EyeLike: a matrix with ones on one diagonal. Each invocation writes one word.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Words y;
  uint count, words;  // words of y; words per element
  uint columns;
  int k;              // the diagonal consists of the elements [i, i + k]
  uint low, high;     // the last two words of the number 1
} p;

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.count) return;
  const uint element = i / p.words, word = i % p.words;
  const bool is_one = int(element / p.columns) + p.k == int(element % p.columns);
  p.y.at[i] = WORD(!is_one ? 0 : word + 1 == p.words ? p.high : p.low);
}
