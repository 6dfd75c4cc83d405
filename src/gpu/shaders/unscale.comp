// UnscaleGradient. Each group divides parts of the gradient by the loss
// scale, and reports whether an element of them is infinite or NaN.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Flags { uint at[]; };

layout(push_constant, scalar) uniform Push {
  Elements y, x, scale;
  Flags overflows;     // one flag per group
  uint count, groups;
} p;

void main() {
  if (group_index() >= p.groups) return;
  const float inverse = 1 / p.scale.at[0];
  float own = 0;
  for (uint i = element_index(); i < p.count; i += 256 * p.groups) {
    const float x = p.x.at[i];
    if ((floatBitsToUint(x) & 0x7F800000u) == 0x7F800000u) own = 1;
    p.y.at[i] = x * inverse;
  }
  const float any = over_group(own);
  if (gl_LocalInvocationIndex == 0) p.overflows.at[group_index()] = any > 0 ? 1 : 0;
}
