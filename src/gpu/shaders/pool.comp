// MaxPool and AveragePool. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;  // 0: maximum; 1: average over taps inside the input; 2: over taps inside the padded input

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint count;                                                // number of elements of y
  ivec3 in_size, out_size, kernel, stride, dilation, pad;    // depth, height and width
  ivec3 padded;                                              // coordinates at which the input with its pads ends
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uvec3 size = uvec3(p.out_size);
  const ivec3 place = ivec3(element / (size.y * size.z) % size.x, element / size.z % size.y, element % size.z);
  const uint plane = element / (size.x * size.y * size.z) * uint(p.in_size.x * p.in_size.y * p.in_size.z);
  float result = KIND == 0 ? -1.0 / 0.0 : 0;
  int taps = 0;
  for (int kd = 0; kd < p.kernel.x; ++kd)
    for (int kh = 0; kh < p.kernel.y; ++kh)
      for (int kw = 0; kw < p.kernel.z; ++kw) {
        const ivec3 at = place * p.stride - p.pad + ivec3(kd, kh, kw) * p.dilation;
        const bool inside = all(greaterThanEqual(at, ivec3(0))) && all(lessThan(at, p.in_size));
        if (KIND == 2 ? all(lessThan(at, p.padded)) : inside) ++taps;
        if (!inside) continue;
        const float x = to_number(p.x.at[plane + uint((at.x * p.in_size.y + at.y) * p.in_size.z + at.z)]);
        result = KIND == 0 ? (x > result || isnan(x) ? x : result) : result + x;
      }
  p.y.at[element] = to_element(KIND == 0 ? result : result / float(taps));
}
