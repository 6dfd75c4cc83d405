// Pad, in all its modes. Each invocation writes one word.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint MODE = 0;  // as numbered in kernels::PadMode
const uint CONSTANT = 0, REFLECT = 1, EDGE = 2, WRAP = 3;

layout(push_constant, scalar) uniform Push {
  Words y, x, value;  // value may be null
  uint count;         // number of words of y
  uint words;         // words per element
  uint has_value;
  ivec4 out_dims, in_dims;       // extents of y and x, innermost last
  ivec4 first, kept, before;     // per axis: begin and extent of the part of x that is kept; elements added before it
} p;

int padded_from(int place, int kept) {
  if (MODE == EDGE) return clamp(place, 0, kept - 1);
  const int period = MODE == REFLECT ? max(2 * (kept - 1), 1) : kept;
  int at = place % period;
  if (at < 0) at += period;
  return MODE == REFLECT && at >= kept ? period - at : at;
}

void main() {
  const uint word = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (word >= p.count) return;
  int rest = int(word / p.words), at = 0, stride = 1;
  const uint part = word % p.words;
  bool inside = true;
  for (int axis = 3; axis >= 0; --axis) {
    int place = rest % p.out_dims[axis] - p.before[axis];
    rest /= p.out_dims[axis];
    if (place < 0 || place >= p.kept[axis]) {
      if (MODE == CONSTANT)
        inside = false;
      else
        place = padded_from(place, p.kept[axis]);
    }
    at += (p.first[axis] + place) * stride;
    stride *= p.in_dims[axis];
  }
  if (inside)
    p.y.at[word] = p.x.at[uint(at) * p.words + part];
  else if (p.has_value != 0)
    p.y.at[word] = p.value.at[part];
  else
    p.y.at[word] = WORD(0);
}
