// GatherGradRows, in two passes over indices that were sorted together with their positions. First, one group finds the rows of the result,
// and the first addend of each row. Then each invocation sums one element of a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "items.glsl"
#include "longs.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint SUMS = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Numbers { uint at[]; };

layout(push_constant, scalar) uniform Push {
  Floats rows, dy;
  Longs places;   // index of each row in the table; -1 for unused rows
  Items items;
  Numbers firsts; // first item of each row; then the end of the last one; at [room + 1] the number of rows
  uint count;     // number of indices
  uint room;      // number of rows in the outputs
  uint inner;     // elements per row
} p;

shared uint ends[256];

// Returns true if an item is the first one of its row. Invalid indices are sorted last; they have been reported as a fault before.
bool begins_row(uint i) { return i < p.count && p.items.at[i].high != 0xFFFFFFFFu && (i == 0 || p.items.at[i - 1].high != p.items.at[i].high); }

void main() {
  const uint own = gl_LocalInvocationIndex;
  if (SUMS == 0) {
    uint found = 0;
    for (uint i0 = 0; i0 < p.count; i0 += 256) {
      const bool begins = begins_row(i0 + own);
      ends[own] = begins ? 1 : 0;
      barrier();
      for (uint reach = 1; reach < 256; reach *= 2) {
        const uint sum = ends[own] + (own >= reach ? ends[own - reach] : 0);
        barrier();
        ends[own] = sum;
        barrier();
      }
      if (begins) {
        const uint row = found + ends[own] - 1;
        p.places.at[row] = to_long(int(p.items.at[i0 + own].high));
        p.firsts.at[row] = i0 + own;
      }
      found += ends[255];
      barrier();
    }
    for (uint row = found + own; row < p.room; row += 256) p.places.at[row] = ivec2(-1, -1);
    if (own == 0) {
      p.firsts.at[found] = p.count;
      p.firsts.at[p.room + 1] = found;
    }
    return;
  }
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + own;
  if (element >= p.room * p.inner) return;
  const uint row = element / p.inner;
  float sum = 0;
  if (row < p.firsts.at[p.room + 1])
    for (uint i = p.firsts.at[row]; i < p.firsts.at[row + 1]; ++i) sum += p.dy.at[p.items.at[i].index * p.inner + element % p.inner];
  p.rows.at[element] = sum;
}
