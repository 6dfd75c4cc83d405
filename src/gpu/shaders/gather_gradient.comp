// The gradient of Gather. Each group of invocations computes one row of dx, which has one index. It searches all indices, 256 at a time,
// and sums the rows of dy with this index, in order.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Elements dx, dy;
  Indices indices;
  Fault fault;        // set to the error number `site` if an index is out of range
  uint site;
  uint index_words;   // 32-bit words per index: 1 or 2
  uint outer, extent, inner, count;  // `count`: number of indices
} p;

shared uint own_rows[256];
shared uint found;

void main() {
  const uint row = group_index(), own = gl_LocalInvocationIndex;
  if (row >= p.outer * p.extent) return;
  const uint block = row / p.extent;
  const int wanted = int(row % p.extent);
  for (uint k = own; k < p.inner; k += 256) p.dx.at[row * p.inner + k] = 0;
  for (uint first = 0; first < p.count; first += 256) {
    const uint i = first + own;
    uint is_own = 0;
    if (i < p.count) {
      const int given = p.indices.at[i * p.index_words], index = given < 0 ? given + int(p.extent) : given;
      const bool is_short = p.index_words == 1 || p.indices.at[i * 2 + 1] == (given < 0 ? -1 : 0);
      if (!is_short || index < 0 || index >= int(p.extent))
        p.fault.site = p.site;
      else
        is_own = uint(index == wanted);
    }
    own_rows[own] = is_own;
    if (own == 0) found = 0;
    barrier();
    if (is_own != 0) found = 1;
    barrier();
    if (found != 0)
      for (uint k = own; k < p.inner; k += 256) {
        float sum = p.dx.at[row * p.inner + k];
        for (uint j = 0; j < 256; ++j)
          if (own_rows[j] != 0) sum += p.dy.at[(block * p.count + first + j) * p.inner + k];
        p.dx.at[row * p.inner + k] = sum;
      }
    barrier();
  }
}
