// CachePositions and, if WINDOWED, WindowPositions. An invocation computes the position of one token. The invocation of a sample's first
// token also computes the numbers per sample. If the operands are valid, all numbers are below 2^31.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"
#include "longs.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint WINDOWED = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Longs first, rows, positions;
  Longs kept;             // if not WINDOWED: a single number, the length of the caches
  Longs origin;           // only if WINDOWED
  Numbers lengths, total;
  Longs ids;
  Numbers counts;
  Fault fault;            // set to the error number `site` if the operands are inconsistent
  uint site;
  int batch, tokens;
  int past;               // number of rows in the cache
  int window;             // only if WINDOWED
  uint has_ids, has_counts, causal;
  uint outputs;           // bit i: output i, in the order above, is used
} p;

bool wanted(uint i) { return (p.outputs >> i & 1u) != 0; }

// Returns the number of keys, out of `total`, that a window's cache holds. A full cache drops several keys at once.
int resident(int total) {
  if (total <= p.past) return total;
  const int gap = p.past - p.window + 1, over = total - p.past;
  return total - gap * (over / gap + (over % gap != 0 ? 1 : 0));
}

void main() {
  const uint item = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  const uint items = uint(max(p.tokens, 1));  // invocations per sample
  if (item >= uint(p.batch) * items) return;
  const uint sample_index = item / items;
  const int token = int(item % items), total = p.total.at[0], last = p.lengths.at[sample_index];
  const bool counted = p.has_counts != 0, prompt = !counted && total == p.tokens;
  const int added = counted ? p.counts.at[sample_index] : p.tokens, present = max(total, p.past);
  bool fits = last >= 0 && last < (WINDOWED != 0 ? total : present) && added >= 0 && added <= p.tokens;
  const int end = fits ? last + 1 : 1;
  int first = prompt && WINDOWED == 0 ? 0 : end - added;
  fits = fits && first >= 0;
  if (!counted) fits = fits && (p.tokens <= 1 || prompt || p.batch == 1);
  if (WINDOWED == 0) {
    fits = fits && total >= p.tokens;
    if (counted)
      fits = fits && end <= total && end - added <= present - p.tokens;
    else
      fits = fits && (total <= p.past || total - p.past == p.tokens);
  }
  if (!fits) {
    p.fault.site = p.site;
    first = 0;
  }
  if (wanted(2) && token < p.tokens)
    p.positions.at[item] = prompt           ? plus(p.has_ids != 0 ? p.ids.at[0] : ivec2(0), token)
                           : p.has_ids != 0 ? p.ids.at[item]
                                            : to_long(first + token);
  if (token != 0) return;
  if (WINDOWED == 0) {
    if (wanted(0)) p.first.at[sample_index] = to_long(first);
    if (wanted(1)) p.rows.at[sample_index] = to_long(!fits ? 0 : p.causal != 0 ? first + p.tokens : end);
    if (item == 0 && wanted(3)) p.kept.at[0] = to_long(present);
    return;
  }
  // The first query sees window - 1 past keys. The cache may hold more of them.
  const int before = resident(first), after = resident(end), carried = fits ? max(after - added, min(before, p.window - 1)) : 0;
  const int rows = fits ? carried + added : 0;
  if (wanted(0)) p.first.at[sample_index] = to_long(fits ? before - carried : 0);
  if (wanted(1)) p.rows.at[sample_index] = to_long(rows);
  if (wanted(3)) p.kept.at[sample_index] = to_long(fits ? rows - after : 0);
  if (wanted(4)) p.origin.at[sample_index] = to_long(end - rows);
}
