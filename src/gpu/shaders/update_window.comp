// UpdateWindow. Each invocation writes one word: of `keys` or, if PRESENT, of `present`, whose rows are copied from `keys`.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"
#include "longs.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint PRESENT = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words present, keys, update, past;
  Longs first, rows, kept;
  Numbers counts;
  Fault fault;               // set to the error number `site` if rows do not fit the cache
  uint site;
  uint count;                // number of words to write
  uint heads, size;          // `size`: words per row
  int added, capacity, extent;
  uint has_counts, in_place;  // in_place: 1: the output `present` is in the memory of the past
} p;

void main() {
  const uint word = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (word >= p.count) return;
  const int length = PRESENT != 0 ? p.capacity : p.extent, row = int(word / p.size % uint(length));
  const uint at = word % p.size, plane = word / p.size / uint(length), sample_index = plane / p.heads;
  const int first = to_int(p.first.at[sample_index]), rows = to_int(p.rows.at[sample_index]), kept = to_int(p.kept.at[sample_index]);
  const int fresh = p.has_counts != 0 ? p.counts.at[sample_index] : p.added;
  if (fresh < 0 || fresh > p.added || first < 0 || rows < fresh || rows > p.extent || first > p.capacity - (rows - fresh) || kept < 0 ||
      kept > rows || rows - kept > p.capacity) {
    p.fault.site = p.site;
    return;
  }
  const int carried = rows - fresh;
  if (PRESENT != 0) {
    if (row < rows - kept)
      p.present.at[word] = p.keys.at[(plane * uint(p.extent) + uint(kept + row)) * p.size + at];
    else if (p.in_place == 0)
      p.present.at[word] = WORD(0);
    return;
  }
  if (row < carried)
    p.keys.at[word] = p.past.at[(plane * uint(p.capacity) + uint(first + row)) * p.size + at];
  else if (row < rows)
    p.keys.at[word] = p.update.at[((sample_index * uint(p.added) + uint(row - carried)) * p.heads + plane % p.heads) * p.size + at];
  else
    p.keys.at[word] = WORD(0);
}
