// FusedRotary. Each invocation rotates one pair of features. Y may be in the memory of X.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, x, cosines, sines;
  uint count;                // number of pairs
  uint heads, rows, size;    // `size`: features per row
  uint interleaved;          // 1: the features of a pair are adjacent; 0: they are half of the features apart
  uint y_steps[3], x_steps[3], cosine_steps[3], sine_steps[3];  // distances between batches, between heads, between rows
} p;

uint first_of(uint steps[3], uint batch, uint head, uint row) { return batch * steps[0] + head * steps[1] + row * steps[2]; }

void main() {
  const uint item = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (item >= p.count) return;
  const uint half_size = p.size / 2, pair = item % half_size;
  const uint row = item / half_size % p.rows, head = item / half_size / p.rows % p.heads, batch = item / half_size / p.rows / p.heads;
  const uint a = p.interleaved != 0 ? 2 * pair : pair, b = p.interleaved != 0 ? a + 1 : a + half_size;
  const uint x = first_of(p.x_steps, batch, head, row), y = first_of(p.y_steps, batch, head, row);
  const uint cosine = first_of(p.cosine_steps, batch, head, row), sine = first_of(p.sine_steps, batch, head, row);
  const float first = p.x.at[x + a], second = p.x.at[x + b];
  p.y.at[y + a] = first * p.cosines.at[cosine + a] - second * p.sines.at[sine + a];
  p.y.at[y + b] = second * p.cosines.at[cosine + b] + first * p.sines.at[sine + b];
}
