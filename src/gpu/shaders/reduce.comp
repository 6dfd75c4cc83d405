// Reductions over any axes. Each output element is computed by a group of invocations, or by one invocation.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "functions.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
// These numbers are the same as in kernels::Reduce.
const uint SUM = 0, MEAN = 1, MAXIMUM = 2, MINIMUM = 3, PRODUCT = 4, L1 = 5, L2 = 6, LOG_SUM = 7, LOG_SUM_EXP = 8, SUM_SQUARE = 9;

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  uint outputs, terms;   // number of output elements; number of inputs that one of them reduces
  uint group_computes;   // 1: a group computes an output element; 0: an invocation does
  uvec4 kept, kept_step;        // extents of the kept axes, innermost last; their strides in x
  uvec4 reduced, reduced_step;  // extents of the reduced axes; their strides in x
  uvec2 otherwise;              // for integers: maximum or minimum over no elements, low word first
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
// Returns the initial value of a reduction. LOG_SUM_EXP first finds the largest element, in a pass with `kind` MAXIMUM.
NUMBER first(uint kind) {
#if defined(ELEMENT_I32)
  return kind == MAXIMUM || kind == MINIMUM ? int(p.otherwise.x) : kind == PRODUCT ? 1 : 0;
#elif defined(ELEMENT_I64)
  const int64_t otherwise = int64_t(uint64_t(p.otherwise.y) << 32 | uint64_t(p.otherwise.x));
  return kind == MAXIMUM || kind == MINIMUM ? otherwise : kind == PRODUCT ? 1L : 0L;
#else
  return kind == MAXIMUM ? -1.0 / 0.0 : kind == MINIMUM ? 1.0 / 0.0 : kind == PRODUCT ? 1 : 0;
#endif
}
NUMBER prepared(uint kind, NUMBER x, NUMBER largest) {
#if !defined(ELEMENT_I32) && !defined(ELEMENT_I64)
  if (kind == LOG_SUM_EXP) return exp_of(x - largest);
#endif
  if (kind == L1) return x < NUMBER(0) ? -x : x;
  return kind == L2 || kind == SUM_SQUARE ? x * x : x;
}
NUMBER join(uint kind, NUMBER a, NUMBER b) {
  if (kind == MAXIMUM || kind == MINIMUM) {
#if !defined(ELEMENT_I32) && !defined(ELEMENT_I64)
    if (isnan(a)) return a;
    if (isnan(b)) return b;
#endif
    return (b > a) == (kind == MAXIMUM) ? b : a;
  }
  return kind == PRODUCT ? a * b : a + b;
}
NUMBER finished(NUMBER x, NUMBER largest) {
  if (KIND == MEAN) return x / NUMBER(p.terms);
#if !defined(ELEMENT_I32) && !defined(ELEMENT_I64)
  if (KIND == L2) return sqrt(x);
  if (KIND == LOG_SUM) return log_of(x);
  if (KIND == LOG_SUM_EXP) return largest + log_of(x);
#endif
  return x;
}

// Reduces those inputs of an output that this invocation, or its group, is responsible for.
NUMBER fold(uint kind, NUMBER largest, uint start) {
  const uint own = gl_LocalInvocationIndex, step = p.group_computes != 0 ? 256 : 1;
  // Sums 1,024 terms at a time and then adds up these sums. One long sum would stop growing when terms become too small compared with it.
  NUMBER result = first(kind), block = first(kind);
  uint terms = 0;
  for (uint k = p.group_computes != 0 ? own : 0; k < p.terms; k += step) {
    block = join(kind, block, prepared(kind, to_number(p.x.at[start + offset_of(k, p.reduced, p.reduced_step)]), largest));
    if (++terms % 1024 != 0) continue;
    result = join(kind, result, block);
    block = first(kind);
  }
  result = join(kind, result, block);
  if (p.group_computes == 0) return result;
  parts[own] = result;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (own < reach) parts[own] = join(kind, parts[own], parts[own + reach]);
    barrier();
  }
  result = parts[0];
  barrier();
  return result;
}

void main() {
  const uint group = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  const uint place = p.group_computes != 0 ? group : group * 256 + own;
  if (place >= p.outputs) return;
  const uint start = offset_of(place, p.kept, p.kept_step);
  NUMBER largest = 0;
#if !defined(ELEMENT_I32) && !defined(ELEMENT_I64)
  if (KIND == LOG_SUM_EXP) {
    largest = fold(MAXIMUM, 0, start);
    if (isinf(largest)) largest = 0;
  }
#endif
  const NUMBER result = fold(KIND, largest, start);
  if (p.group_computes == 0 || own == 0) p.y.at[place] = to_element(finished(result, largest));
}
