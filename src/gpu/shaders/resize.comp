// Resize along the middle axis of [outer, extent, inner]. Each invocation computes one element or, if NEAREST, copies one word.
#version 460
#extension GL_GOOGLE_include_directive : require
#ifdef NEAREST
#include "words.glsl"
#define Elements Words
#else
#include "elements.glsl"
#endif

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint MODE = 0;  // if NEAREST, as numbered in kernels::Nearest; otherwise in kernels::Filter
const uint PREFER_FLOOR = 0, PREFER_CEIL = 1, FLOOR = 2, CEIL = 3;
const uint LINEAR = 1;

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint count;  // number of elements of y
  int in_extent;
  uint out_extent, inner;
  // The position in x of element 0 of y, and the distance in x between adjacent elements of y. Each has a whole number and a fraction in
  // units of 2^-32, so that positions are added without rounding.
  int start, step;
  uint start_part, step_part;
  float cubic_a;
  uint exclude_outside;
  uint reach;             // number of inputs on either side of a position that the filter reads
  float distance_factor;  // factor for distances before the filter; below 1, the filter is wider
  uint normalizes;        // 1: weights are divided by their sum
  uint extrapolates;      // 1: positions outside the input give `extrapolation`
  float extrapolation;
  uint bounds;            // if not 0, results are integers in [low, high], rounded 1: toward zero; 2: to nearest
  float low, high;
} p;

float weight_of(float distance) {
  const float d = abs(distance), a = p.cubic_a;
  if (MODE == LINEAR) return max(0.0, 1 - d);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uint n = element % p.inner, o = element / p.inner % p.out_extent, outer = element / p.inner / p.out_extent;
  uint high, part, carry;
  umulExtended(o, p.step_part, high, part);
  part = uaddCarry(part, p.start_part, carry);
  int whole = p.start + int(o) * p.step + int(high) + int(carry);
  const uint row = outer * uint(p.in_extent) * p.inner + n;
#ifdef NEAREST
  // The distance, for example 1 / 3, has been rounded to a fraction. So positions very close to a whole number or a half are rounded to it.
  part = uaddCarry(part, 0x8000u, carry) & 0xFFFF0000u;
  whole += int(carry);
  if (MODE == PREFER_FLOOR && part > 0x80000000u || MODE == PREFER_CEIL && part >= 0x80000000u || MODE == CEIL && part > 0) ++whole;
  p.y.at[element] = p.x.at[row + uint(clamp(whole, 0, p.in_extent - 1)) * p.inner];
#else
  // The distance has been rounded, so a position that should be that of the last input may be slightly beyond it.
  const bool is_behind = whole > p.in_extent - 1 || whole == p.in_extent - 1 && part > 0x8000u;
  if (p.extrapolates != 0 && (is_behind || whole < -1 || whole == -1 && part < 0xFFFF8000u)) {
    p.y.at[element] = to_element(p.extrapolation);
    return;
  }
  const float fraction = float(part) * (1.0 / 4294967296.0);
  float sum = 0, weights = 0;
  for (int k = 1 - int(p.reach); k <= int(p.reach); ++k) {
    const int i = whole + k;
    if (p.exclude_outside != 0 && (i < 0 || i >= p.in_extent)) continue;
    const float weight = weight_of((float(k) - fraction) * p.distance_factor);
    weights += weight;
    sum = fma(weight, to_number(p.x.at[row + uint(clamp(i, 0, p.in_extent - 1)) * p.inner]), sum);
  }
  if (p.normalizes != 0 && weights != 0) sum /= weights;
  if (p.bounds != 0) sum = clamp(p.bounds == 1 ? trunc(sum) : roundEven(sum), p.low, p.high);
  p.y.at[element] = to_element(sum);
#endif
}
