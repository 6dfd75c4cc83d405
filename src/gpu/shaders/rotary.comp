// RotaryEmbedding. Each invocation rotates a pair of features by an angle, or copies a feature. Y may be in the memory of X.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Positions { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Elements y, x, cosines, sines;
  Positions ids;         // position ids of the tokens, in 64 bits; null: each token has its own row in the tables
  Fault fault;           // set to the error number `site` if a position is not in the tables
  uint site;
  uint count;            // number of elements of x
  uint heads, tokens, size;  // `tokens`: number of tokens per sequence of the batch
  uint turned;           // number of features that are rotated, at the start of a head
  uint rows;             // number of rows in the tables
  uint has_ids;
  uint heads_first;      // layout of x: 1: [batch, heads, tokens, size]; 0: [batch, tokens, heads, size]
  uint interleaved;      // 1: the features of a pair are adjacent; 0: half of the rotated features apart
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uint feature = element % p.size, row = element / p.size;
  if (feature >= p.turned) {
    p.y.at[element] = p.x.at[element];
    return;
  }
  const uint half_turned = p.turned / 2, step = p.interleaved != 0 ? 1 : half_turned;
  // The invocation of a pair's first feature also writes the second one.
  if (p.interleaved != 0 ? feature % 2 == 1 : feature >= half_turned) return;
  const uint batch = row / (p.heads * p.tokens), token = p.heads_first != 0 ? row % p.tokens : row / p.heads % p.tokens;
  const uint pair = p.interleaved != 0 ? feature / 2 : feature;
  uint table_row = batch * p.tokens + token;
  if (p.has_ids != 0) {
    const int id = p.ids.at[2 * table_row];
    if (p.ids.at[2 * table_row + 1] != 0 || id < 0 || id >= int(p.rows)) {
      p.fault.site = p.site;
      p.y.at[element] = p.y.at[element + step] = to_element(0.0);
      return;
    }
    table_row = uint(id);
  }
  const float cosine = to_number(p.cosines.at[table_row * half_turned + pair]), sine = to_number(p.sines.at[table_row * half_turned + pair]);
  const float first = to_number(p.x.at[element]), second = to_number(p.x.at[element + step]);
  p.y.at[element] = to_element(cosine * first - sine * second);
  p.y.at[element + step] = to_element(sine * first + cosine * second);
}
