// Batches of matrix products Y = alpha A B + beta C in float64 and integers. A group of 256 invocations computes a tile of 64 rows and 64
// columns; each invocation computes 16 of its elements.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, a, b, c;   // c may be null
  Elements operands[3];  // unused, but keeps the layout of the push constants as in product.comp
  uint has_c;
  uint rows, columns, terms;
  uvec2 a_step, b_step, c_step;  // distances in elements from row to row, and from column to column
  uvec3 batch_step;              // distances in elements from matrix to matrix, for a, b and c
  float alpha, beta;
} p;

void main() {
  const uint column_tiles = (p.columns + 63) / 64, tile = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, batch = gl_WorkGroupID.z;
  if (tile >= column_tiles * ((p.rows + 63) / 64)) return;
  for (uint i = gl_LocalInvocationIndex; i < 4096; i += 256) {
    const uint row = tile / column_tiles * 64 + i / 64, column = tile % column_tiles * 64 + i % 64;
    if (row >= p.rows || column >= p.columns) continue;
    const uint a = batch * p.batch_step.x + row * p.a_step.x, b = batch * p.batch_step.y + column * p.b_step.y;
    NUMBER sum = NUMBER(0);
    for (uint k = 0; k < p.terms; ++k) sum += to_number(p.a.at[a + k * p.a_step.y]) * to_number(p.b.at[b + k * p.b_step.x]);
#if defined(ELEMENT_F64)
    sum *= NUMBER(p.alpha);
    if (p.has_c != 0) sum += NUMBER(p.beta) * to_number(p.c.at[row * p.c_step.x + column * p.c_step.y]);
#endif
    p.y.at[(batch * p.rows + row) * p.columns + column] = to_element(sum);
  }
}
