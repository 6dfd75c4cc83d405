// GatherGradRows, in two passes over indices that are sorted with their positions. First, one group finds the rows, and where the addends
// of each row begin. Then each invocation adds up one element of a row.
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
  Longs places;   // for each row, the row of the table to which it belongs; -1: none
  Items items;
  Numbers firsts; // for each row, its first item; then the end of the last row; at [room + 1] the number of rows
  uint count;     // number of indices
  uint room;      // number of rows for which the outputs have room
  uint inner;     // number of elements of a row
} p;

shared uint ends[256];

// Returns true if an item is the first one of its row. Indices outside of the table sort last, and are reported as a fault already.
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
