// AffineGrid: each invocation computes one coordinate of one point: of a regular grid, transformed by the affine map of its image.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements grid, theta;  // grid [images, points, rank]; theta [images, rank, rank + 1]
  uint count, points, rank;
  uint align_corners;
  uvec3 extents;         // extents of the grid, innermost last; with two axes, the first extent is 1
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uint row = element % p.rank, at = element / p.rank;
  const uint map = (at / p.points * p.rank + row) * (p.rank + 1);
  uint rest = at % p.points;
  NUMBER sum = to_number(p.theta.at[map + p.rank]);
  for (uint i = 0; i < p.rank; ++i) {  // from the innermost axis outward
    const uint extent = p.extents[2 - i];
    const NUMBER index = NUMBER(rest % extent), size = NUMBER(extent);
    rest /= extent;
    NUMBER place = (NUMBER(2) * index + NUMBER(1)) / size - NUMBER(1);
    if (p.align_corners != 0) place = extent > 1 ? NUMBER(2) * index / (size - NUMBER(1)) - NUMBER(1) : NUMBER(-1);
    sum += to_number(p.theta.at[map + i]) * place;
  }
  p.grid.at[element] = to_element(sum);
}
