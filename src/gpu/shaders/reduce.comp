// Reductions over any axes. Each element of the output is computed by a group of invocations, or by one invocation.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
// The numbers of kernels::Reduce.
const uint SUM = 0, MEAN = 1, MAXIMUM = 2, MINIMUM = 3, PRODUCT = 4, L1 = 5, L2 = 6, LOG_SUM = 7, LOG_SUM_EXP = 8, SUM_SQUARE = 9;

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint outputs, terms;   // number of elements of the output, and of inputs that each of them reduces
  uint group_computes;   // 1: a group computes an element of the output; 0: one invocation does
  uvec4 kept, kept_step;        // extents of the axes that are kept, and their strides in x; innermost last
  uvec4 reduced, reduced_step;  // extents and strides of the axes that are reduced
} p;

shared NUMBER parts[256];

uint offset_of(uint place, uvec4 extents, uvec4 steps) {
  uint offset = 0;
  for (int axis = 3; axis >= 0; --axis) {
    offset += place % extents[axis] * steps[axis];
    place /= extents[axis];
  }
  return offset;
}
NUMBER first() {
#if defined(ELEMENT_I32)
  return KIND == MAXIMUM ? -2147483647 - 1 : KIND == MINIMUM ? 2147483647 : KIND == PRODUCT ? 1 : 0;
#elif defined(ELEMENT_I64)
  return KIND == MAXIMUM ? -9223372036854775807L - 1L : KIND == MINIMUM ? 9223372036854775807L : KIND == PRODUCT ? 1L : 0L;
#else
  return KIND == MAXIMUM ? -1.0 / 0.0 : KIND == MINIMUM ? 1.0 / 0.0 : KIND == PRODUCT ? 1 : 0;
#endif
}
NUMBER prepared(NUMBER x) {
  if (KIND == L1) return x < NUMBER(0) ? -x : x;
  return KIND == L2 || KIND == SUM_SQUARE ? x * x : x;
}
NUMBER join(NUMBER a, NUMBER b) {
  if (KIND == MAXIMUM || KIND == MINIMUM) {
#if !defined(ELEMENT_I32) && !defined(ELEMENT_I64)
    if (isnan(a)) return a;
    if (isnan(b)) return b;
#endif
    return (b > a) == (KIND == MAXIMUM) ? b : a;
  }
  return KIND == PRODUCT ? a * b : a + b;
}
NUMBER finished(NUMBER x) {
  if (KIND == MEAN) return x / NUMBER(p.terms);
#if !defined(ELEMENT_I32) && !defined(ELEMENT_I64)
  if (KIND == L2) return sqrt(x);
  if (KIND == LOG_SUM) return log(x);
#endif
  return x;
}

void main() {
  const uint group = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  const uint place = p.group_computes != 0 ? group : group * 256 + own;
  if (place >= p.outputs) return;
  const uint start = offset_of(place, p.kept, p.kept_step);
  const uint step = p.group_computes != 0 ? 256 : 1;
  // Sums 1,024 terms at a time and then adds these sums, because a term much smaller than the sum so far would be lost in rounding.
  NUMBER result = first(), block = first();
  uint terms = 0;
  for (uint k = p.group_computes != 0 ? own : 0; k < p.terms; k += step) {
    block = join(block, prepared(to_number(p.x.at[start + offset_of(k, p.reduced, p.reduced_step)])));
    if (++terms % 1024 != 0) continue;
    result = join(result, block);
    block = first();
  }
  result = join(result, block);
  if (p.group_computes != 0) {
    parts[own] = result;
    barrier();
    for (uint reach = 128; reach > 0; reach /= 2) {
      if (own < reach) parts[own] = join(parts[own], parts[own + reach]);
      barrier();
    }
    if (own != 0) return;
    result = parts[0];
  }
  p.y.at[place] = to_element(finished(result));
}
