// DynamicQuantizeLinear. First (RANGE), each group finds the smallest and the largest element of its part. Then each group combines the
// results of all parts and quantizes elements.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint RANGE = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ranges { vec2 at[]; };

layout(push_constant, scalar) uniform Push {
  Words y;
  Floats scale;
  Words zero;         // scale and zero may be null
  Floats x;
  Ranges ranges;      // smallest and largest element of each part
  uint count, parts;  // number of elements; number of parts, at most 256
  uint has_scale, has_zero;
} p;

shared vec2 ranges[256];

vec2 joined(vec2 own) {
  const uint at = gl_LocalInvocationIndex;
  ranges[at] = own;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (at < reach) ranges[at] = vec2(min(ranges[at].x, ranges[at + reach].x), max(ranges[at].y, ranges[at + reach].y));
    barrier();
  }
  return ranges[0];
}

void main() {
  const uint group = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  vec2 range = vec2(0);  // starts at 0: the range must include 0, which needs an exact code
  if (RANGE != 0) {
    if (group >= p.parts) return;
    for (uint i = group * 256 + own; i < p.count; i += p.parts * 256) {
      const float x = p.x.at[i];
      if (x < range.x) range.x = x;
      if (x > range.y) range.y = x;
    }
    range = joined(range);
    if (own == 0) p.ranges.at[group] = range;
    return;
  }
  if (own < p.parts) range = p.ranges.at[own];
  range = joined(range);
  precise float span = range.y - range.x;
  precise float scale = range.x == range.y ? 1 : span / 255;
  precise float exact = -range.x / scale;
  const float zero = isnan(exact) ? 0 : roundEven(clamp(exact, 0.0, 255.0));
  if (group == 0 && own == 0) {
    if (p.has_scale != 0) p.scale.at[0] = scale;
    if (p.has_zero != 0) p.zero.at[0] = WORD(uint(zero));
  }
  const uint i = group * 256 + own;
  if (i >= p.count) return;
  precise float quotient = p.x.at[i] / scale;
  const float low = -zero, high = 255 - zero;
  float y = low < quotient ? quotient : low;  // NaN becomes the smallest code
  y = y < high ? y : high;
  p.y.at[i] = WORD(uint(roundEven(y) + zero));
}
