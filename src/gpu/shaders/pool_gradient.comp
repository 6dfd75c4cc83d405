// Gradients of pools.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
const uint MAXIMUM = 0;  // each invocation computes a plane, as several windows may have the same maximum
const uint AVERAGE = 1;  // each invocation computes an element of dx, from averages over taps inside the input
const uint PADDED = 2;   // like AVERAGE, but the averages are over taps inside the padded input
const uint SUM = 3;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Indices { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Elements dx, dy;
  Indices indices;          // positions of the maxima among all elements of x, in 64 bits
  Fault fault;              // set to the error number `site` if an index is not in its plane
  uint site;
  uint count;               // number of planes (MAXIMUM) or of elements of dx
  ivec2 in_size, out_size;  // height and width, as for all ivec2 below
  ivec2 kernel, stride, dilation, pad;
  ivec2 padded;             // in_size plus the pads at both ends
} p;

void spread_maxima(uint plane) {
  const int size = p.in_size.x * p.in_size.y, outputs = p.out_size.x * p.out_size.y;
  const uint first = plane * uint(size);
  for (int k = 0; k < size; ++k) p.dx.at[first + uint(k)] = 0;
  for (int k = 0; k < outputs; ++k) {
    const uint from = plane * uint(outputs) + uint(k);
    const int index = p.indices.at[2 * from];
    if (p.indices.at[2 * from + 1] == -1) continue;  // -1: the window has only padding
    const int place = index - int(first);
    if (p.indices.at[2 * from + 1] != 0 || place < 0 || place >= size) {
      p.fault.site = p.site;
      return;
    }
    p.dx.at[first + uint(place)] += p.dy.at[from];
  }
}

// Returns how many taps of a window are inside the input, or inside the padded input if PADDED, along one axis.
int taps(int position, int axis) {
  const int start = position * p.stride[axis] - p.pad[axis];
  int count = 0;
  for (int k = 0; k < p.kernel[axis]; ++k) {
    const int at = start + k * p.dilation[axis];
    if (KIND == PADDED ? at < p.padded[axis] : at >= 0 && at < p.in_size[axis]) ++count;
  }
  return count;
}

void main() {
  const uint element = element_index();
  if (element >= p.count) return;
  if (KIND == MAXIMUM) {
    spread_maxima(element);
    return;
  }
  const int iw = int(element % uint(p.in_size.y)), ih = int(element / uint(p.in_size.y) % uint(p.in_size.x));
  const uint plane = element / uint(p.in_size.x * p.in_size.y) * uint(p.out_size.x * p.out_size.y);
  float sum = 0;
  for (int kh = 0; kh < p.kernel.x; ++kh) {
    const int h = ih + p.pad.x - kh * p.dilation.x, oh = h / p.stride.x;
    if (h < 0 || h % p.stride.x != 0 || oh >= p.out_size.x) continue;
    const int rows = KIND == SUM ? 1 : taps(oh, 0);
    for (int kw = 0; kw < p.kernel.y; ++kw) {
      const int w = iw + p.pad.y - kw * p.dilation.y, ow = w / p.stride.y;
      if (w < 0 || w % p.stride.y != 0 || ow >= p.out_size.y) continue;
      const float d = p.dy.at[plane + uint(oh * p.out_size.y + ow)];
      sum += KIND == SUM ? d : d / float(rows * taps(ow, 1));
    }
  }
  p.dx.at[element] = sum;
}
