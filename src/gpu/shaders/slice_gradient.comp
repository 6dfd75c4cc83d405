// The gradient of Slice. Each invocation computes one element: the element of dy if Slice read this position, otherwise 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements dx, dy;
  uint count;                          // number of elements of dx
  ivec4 extents, starts, steps, taken; // extents, starts, steps: per axis of x, innermost last; taken: extents of dy
} p;

void main() {
  const uint element = element_index();
  if (element >= p.count) return;
  uint rest = element, at = 0, stride = 1;
  bool inside = true;
  for (int axis = 3; axis >= 0; --axis) {
    const int place = int(rest % uint(p.extents[axis])) - p.starts[axis];
    rest /= uint(p.extents[axis]);
    const int index = place / p.steps[axis];
    inside = inside && index * p.steps[axis] == place && index >= 0 && index < p.taken[axis];
    at += uint(index) * stride;
    stride *= uint(p.taken[axis]);
  }
  p.dx.at[element] = inside ? p.dy.at[at] : 0;
}
