// MaxPool, AveragePool and LpPool. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "functions.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
const uint MAXIMUM = 0, AVERAGE = 1;  // AVERAGE: over taps inside the input
const uint AVERAGE_WITH_PADS = 2;     // over taps inside the padded input
const uint NORM = 3;

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint count;                                                // number of elements of y
  ivec3 in_size, out_size, kernel, stride, dilation, pad;    // depth, height and width
  ivec3 padded;                                              // end of the padded input, per axis
  uint order;                                                // if NORM: order of the norm
} p;

NUMBER term_of(NUMBER x) {
  if (KIND != NORM) return x;
  return p.order == 1 ? abs(x) : p.order == 2 ? x * x : power_of(abs(x), NUMBER(p.order));
}
NUMBER root_of(NUMBER sum) { return p.order == 1 ? sum : p.order == 2 ? sqrt(sum) : power_of(sum, NUMBER(1) / NUMBER(p.order)); }

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uvec3 size = uvec3(p.out_size);
  const ivec3 place = ivec3(element / (size.y * size.z) % size.x, element / size.z % size.y, element % size.z);
  const uint plane = element / (size.x * size.y * size.z) * uint(p.in_size.x * p.in_size.y * p.in_size.z);
  NUMBER result = NUMBER(KIND == MAXIMUM ? -1.0 / 0.0 : 0.0);
  int taps = 0;
  for (int kd = 0; kd < p.kernel.x; ++kd)
    for (int kh = 0; kh < p.kernel.y; ++kh)
      for (int kw = 0; kw < p.kernel.z; ++kw) {
        const ivec3 at = place * p.stride - p.pad + ivec3(kd, kh, kw) * p.dilation;
        const bool inside = all(greaterThanEqual(at, ivec3(0))) && all(lessThan(at, p.in_size));
        if (KIND == AVERAGE_WITH_PADS ? all(lessThan(at, p.padded)) : inside) ++taps;
        if (!inside) continue;
        const NUMBER x = to_number(p.x.at[plane + uint((at.x * p.in_size.y + at.y) * p.in_size.z + at.z)]);
        result = KIND == MAXIMUM ? (x > result || isnan(x) ? x : result) : result + term_of(x);
      }
  p.y.at[element] = to_element(KIND == MAXIMUM ? result : KIND == NORM ? root_of(result) : result / NUMBER(taps));
}
