// Range: element i is start + i * delta.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y;
  NUMBER start, delta;  // at a multiple of 8 bytes, as a float64 requires
  uint count;
} p;

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.count) return;
#if defined(ELEMENT_F32) || defined(ELEMENT_F64)
  precise NUMBER y = NUMBER(i) * p.delta;
  y = p.start + y;
  p.y.at[i] = to_element(y);
#else
  p.y.at[i] = p.start + NUMBER(i) * p.delta;
#endif
}
