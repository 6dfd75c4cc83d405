// MaxPool with two spatial axes. It also outputs the positions of the maxima among all elements of x. Each invocation computes one element
// of y.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Indices { uint at[]; };

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  Indices indices;          // positions of the maxima, in 64 bits; -1 if the window has only padding
  uint count;               // number of elements of y
  ivec2 in_size, out_size;  // height and width, as for all ivec2 below
  ivec2 kernel, stride, dilation, pad;
} p;

void main() {
  const uint element = element_index();
  if (element >= p.count) return;
  const int ow = int(element % uint(p.out_size.y)), oh = int(element / uint(p.out_size.y) % uint(p.out_size.x));
  const uint plane = element / uint(p.out_size.x * p.out_size.y) * uint(p.in_size.x * p.in_size.y);
  float result = -1.0 / 0.0;
  uint place = 0xFFFFFFFFu;
  for (int kh = 0; kh < p.kernel.x; ++kh)
    for (int kw = 0; kw < p.kernel.y; ++kw) {
      const int ih = oh * p.stride.x - p.pad.x + kh * p.dilation.x, iw = ow * p.stride.y - p.pad.y + kw * p.dilation.y;
      if (ih < 0 || ih >= p.in_size.x || iw < 0 || iw >= p.in_size.y) continue;
      const uint at = plane + uint(ih * p.in_size.y + iw);
      const float x = to_number(p.x.at[at]);
      if (place != 0xFFFFFFFFu && !(x > result) && !(isnan(x) && !isnan(result))) continue;
      result = x;
      place = at;
    }
  p.y.at[element] = to_element(result);
  p.indices.at[2 * element] = place;
  p.indices.at[2 * element + 1] = place == 0xFFFFFFFFu ? place : 0;
}
