// OneHot. Each invocation writes one word, either of the value at the index or of the value at all other positions.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint INDEX = 0;
const uint WORD_INDEX = 0, LONG_INDEX = 1, FLOAT_INDEX = 2;  // types of the indices: 32-bit integer, 64-bit integer, float32

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };

layout(push_constant, scalar) uniform Push {
  Words y, values;
  Indices indices;
  uint count, words;  // words of y; words per element
  int depth;
  uint inner;
} p;

int index_at(uint i) {
  const int none = -2147483647;
  if (INDEX == WORD_INDEX) return p.indices.at[i];
  if (INDEX == LONG_INDEX) return p.indices.at[2 * i + 1] == p.indices.at[2 * i] >> 31 ? p.indices.at[2 * i] : none;
  const float x = intBitsToFloat(p.indices.at[i]);
  return abs(x) < 2147483520.0 ? int(x) : none;
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.count) return;
  const uint element = i / p.words, inner = element % p.inner, depth = uint(p.depth);
  const int place = int(element / p.inner % depth), given = index_at(element / p.inner / depth * p.inner + inner);
  const bool is_hot = given == place || given < 0 && given + p.depth == place;
  p.y.at[i] = p.values.at[(is_hot ? p.words : 0) + i % p.words];
}
