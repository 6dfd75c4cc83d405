// DeformConv with two spatial axes: each tap samples at its regular position plus an offset. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, x, w, offset, bias, mask;  // bias and mask may be null
  uint has_bias, has_mask;
  uint count;                            // number of elements of y
  int channels, filters, groups, offset_groups;  // input channels and output channels per image
  ivec2 in_size, out_size, kernel, stride, dilation, pad;  // height and width
} p;

NUMBER element_of(uint plane, int h, int w) {
  if (h < 0 || h >= p.in_size.x || w < 0 || w >= p.in_size.y) return NUMBER(0);
  return to_number(p.x.at[plane + uint(h * p.in_size.y + w)]);
}
// Interpolates between four pixels. Pixels outside the image are 0.
NUMBER sampled(uint plane, NUMBER h, NUMBER w) {
  if (!(h > NUMBER(-1) && w > NUMBER(-1) && h < NUMBER(p.in_size.x) && w < NUMBER(p.in_size.y))) return NUMBER(0);
  const NUMBER top = floor(h), left = floor(w), dh = h - top, dw = w - left;
  const int i = int(top), k = int(left);
  return (NUMBER(1) - dh) * ((NUMBER(1) - dw) * element_of(plane, i, k) + dw * element_of(plane, i, k + 1)) +
         dh * ((NUMBER(1) - dw) * element_of(plane, i + 1, k) + dw * element_of(plane, i + 1, k + 1));
}

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const int pixels = p.out_size.x * p.out_size.y, taps = p.kernel.x * p.kernel.y;
  const int pixel = int(element) % pixels, filter_number = int(element) / pixels % p.filters, image = int(element) / (pixels * p.filters);
  const ivec2 place = ivec2(pixel / p.out_size.y, pixel % p.out_size.y) * p.stride - p.pad;
  const int depth = p.channels / p.groups, first = filter_number / (p.filters / p.groups) * depth;
  const int sharing = p.channels / p.offset_groups;  // number of input channels that share offsets
  NUMBER sum = NUMBER(0);
  for (int c = 0; c < depth; ++c) {
    const int channel = first + c;
    const uint plane = uint(image * p.channels + channel) * uint(p.in_size.x * p.in_size.y);
    const int offsets = (image * p.offset_groups + channel / sharing) * taps;
    for (int tap = 0; tap < taps; ++tap) {
      const uint at = uint((offsets + tap) * pixels + pixel), down = uint((2 * (offsets + tap)) * pixels + pixel);
      const ivec2 regular = place + ivec2(tap / p.kernel.y, tap % p.kernel.y) * p.dilation;
      const NUMBER h = NUMBER(regular.x) + to_number(p.offset.at[down]);
      NUMBER x = sampled(plane, h, NUMBER(regular.y) + to_number(p.offset.at[down + uint(pixels)]));
      if (p.has_mask != 0) x *= to_number(p.mask.at[at]);
      sum += x * to_number(p.w.at[uint((filter_number * depth + c) * taps + tap)]);
    }
  }
  if (p.has_bias != 0) sum += to_number(p.bias.at[filter_number]);
  p.y.at[element] = to_element(sum);
}
