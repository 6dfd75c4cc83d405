// GridSample with up to three spatial axes. Each invocation computes one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint MODE = 0;
const uint NEAREST = 0, LINEAR = 1, CUBIC = 2;  // numbers as in kernels::GridMode
layout(constant_id = 1) const uint PADDING = 0;
const uint ZEROS = 0, BORDER = 1, REFLECTION = 2;  // numbers as in kernels::GridPadding
layout(constant_id = 2) const uint ALIGN_CORNERS = 0;

layout(push_constant, scalar) uniform Push {
  Elements y, x, grid;
  uint count, channels, points;  // count: number of elements of y [batch, channels, points]
  uint rank;
  ivec3 extents;                 // extents of the image, innermost last; preceded by ones if it has fewer axes
} p;

const uint MOST = MODE == NEAREST ? 1 : MODE == LINEAR ? 2 : 4;

// Reflects x at the borders, repeatedly, until it is inside.
NUMBER reflected(NUMBER x, NUMBER low, NUMBER high) {
  const NUMBER range = high - low;
  if (!(range > NUMBER(0))) return low;
  const bool below = x < low;
  if (!below && !(x > high)) return x;
  const NUMBER distance = below ? low - x : x - high, times = floor(distance / range), rest = distance - times * range;
  const bool is_even = times - NUMBER(2) * floor(times / NUMBER(2)) == NUMBER(0);
  return below == is_even ? low + rest : high - rest;
}

// Returns the index of the pixel that is used for index i of an axis, by the padding mode; -1 if the padding is 0 there.
int index_at(int i, int extent, NUMBER low, NUMBER high) {
  if (i >= 0 && i < extent) return i;
  if (PADDING == ZEROS) return -1;
  if (PADDING == REFLECTION) i = int(reflected(NUMBER(i), low, high));
  return clamp(i, 0, extent - 1);
}

NUMBER near_weight(NUMBER d) { return (NUMBER(1.25) * d - NUMBER(2.25)) * d * d + NUMBER(1); }
NUMBER far_weight(NUMBER d) { return ((NUMBER(-0.75) * d + NUMBER(3.75)) * d - NUMBER(6)) * d + NUMBER(3); }

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uint point = element % p.points, plane = element / p.points;
  const uint first_place = (plane / p.channels * p.points + point) * p.rank;
  int places[3][4] = {{0, -1, -1, -1}, {0, -1, -1, -1}, {0, -1, -1, -1}};
  NUMBER weights[3][4];
  for (uint axis = 0; axis < 3; ++axis) {
    weights[axis][0] = NUMBER(1);
    if (axis + p.rank < 3) continue;
    const int extent = p.extents[axis];
    const NUMBER size = NUMBER(extent), given = to_number(p.grid.at[first_place + 2 - axis]);
    const NUMBER low = NUMBER(ALIGN_CORNERS != 0 ? 0.0 : -0.5), high = ALIGN_CORNERS != 0 ? size - NUMBER(1) : size - NUMBER(0.5);
    NUMBER x = ALIGN_CORNERS != 0 ? (given + NUMBER(1)) / NUMBER(2) * (size - NUMBER(1))
                                  : ((given + NUMBER(1)) * size - NUMBER(1)) / NUMBER(2);
    if (MODE == NEAREST) x = roundEven(x);
    // Bounds x, so that its conversion to an integer is defined, also for NaN. Points this far outside give the same result anyway.
    x = x > NUMBER(-1e9) ? min(x, NUMBER(1e9)) : NUMBER(-1e9);
    // Cubic filters apply the padding to each pixel, other filters to the position.
    if (MODE != CUBIC && (x < low || x > high)) {
      if (PADDING == BORDER) x = clamp(x, NUMBER(0), size - NUMBER(1));
      if (PADDING == REFLECTION) x = reflected(x, low, high);
    }
    const NUMBER whole = floor(x), t = x - whole;
    const int start = MODE == NEAREST ? int(x) : int(whole) - (MODE == CUBIC ? 1 : 0);
    for (uint k = 0; k < MOST; ++k) places[axis][k] = index_at(start + int(k), extent, low, high);
    if (MODE == LINEAR) {
      weights[axis][0] = NUMBER(1) - t;
      weights[axis][1] = t;
    } else if (MODE == CUBIC) {
      weights[axis][0] = far_weight(t + NUMBER(1));
      weights[axis][1] = near_weight(t);
      weights[axis][2] = near_weight(NUMBER(1) - t);
      weights[axis][3] = far_weight(NUMBER(2) - t);
    }
  }
  NUMBER sum = NUMBER(0);
  const uint start = plane * uint(p.extents.x * p.extents.y * p.extents.z);
  for (uint d = 0; d < MOST; ++d)
    for (uint h = 0; h < MOST; ++h)
      for (uint w = 0; w < MOST; ++w) {
        const int i = places[0][d], k = places[1][h], l = places[2][w];
        if (i < 0 || k < 0 || l < 0) continue;
        const NUMBER x = to_number(p.x.at[start + uint((i * p.extents.y + k) * p.extents.z + l)]);
        sum += weights[0][d] * weights[1][h] * weights[2][w] * x;
      }
  p.y.at[element] = to_element(sum);
}
