// UpdateCache. Each invocation writes one word of the cache. If new rows are written over the past in place, only their words are written.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"
#include "longs.glsl"

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words present, update, past;
  Longs places;
  Numbers counts;
  Fault fault;           // set to the error number `site` if a position or a count does not fit the cache
  uint site;
  uint count;            // number of words to write
  uint heads, size;      // `size`: words per row
  int added, past_rows, extent;
  uint has_counts, in_place;
} p;

void main() {
  const uint word = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (word >= p.count) return;
  const uint at = word % p.size, rows_of_head = uint(p.in_place != 0 ? p.added : p.extent);
  const uint plane = word / p.size / rows_of_head, sample_index = plane / p.heads, head = plane % p.heads;
  const int place = to_int(p.places.at[sample_index]), fresh = p.has_counts != 0 ? p.counts.at[sample_index] : p.added;
  if (fresh < 0 || fresh > p.added || place < 0 || place > p.past_rows || place > p.extent - fresh) {
    p.fault.site = p.site;
    return;
  }
  const int own = int(word / p.size % rows_of_head), row = p.in_place != 0 ? place + own : own;
  const uint to = (plane * uint(p.extent) + uint(row)) * p.size + at;
  if (row >= place && row < place + fresh)
    p.present.at[to] = p.update.at[((sample_index * uint(p.added) + uint(row - place)) * p.heads + head) * p.size + at];
  else if (p.in_place == 0)
    p.present.at[to] = row < p.past_rows ? p.past.at[(plane * uint(p.past_rows) + uint(row)) * p.size + at] : WORD(0);
}
