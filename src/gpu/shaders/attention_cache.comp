// Writes present_key or present_value: past and new rows, [batch, heads, past + new, size]. Each invocation copies one element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements present, past, added;
  uint count, heads, past_length, added_length, size;
  uint is_packed;  // 1: `added` is [batch, rows, heads, size]; 0: [batch, heads, rows, size]
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uint total = p.past_length + p.added_length, at = element % p.size, row = element / p.size % total, plane = element / (p.size * total);
  if (row < p.past_length) {
    p.present.at[element] = p.past.at[(plane * p.past_length + row) * p.size + at];
    return;
  }
  const uint own = row - p.past_length, batch = plane / p.heads, head = plane % p.heads;
  const uint from = p.is_packed != 0 ? (batch * p.added_length + own) * p.heads + head : plane * p.added_length + own;
  p.present.at[element] = p.added.at[from * p.size + at];
}
