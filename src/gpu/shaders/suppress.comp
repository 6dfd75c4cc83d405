// NonMaxSuppression. In the stage KEYS, each invocation makes the item of a score. In SELECT, a group selects the boxes of one class in one
// image. In WRITE, each invocation writes a row of the result.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "items.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint STAGE = 0;
const uint KEYS = 0, SELECT = 1, WRITE = 2;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Boxes { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Ints { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Rows { uvec2 at[]; };  // indices of 64 bits

layout(push_constant, scalar) uniform Push {
  Boxes boxes;                // shape [images, count]
  Floats scores;              // shape [images, classes, count]
  Floats iou, least;          // the two thresholds (of overlap and of score); may be null
  Items items;                // shape [images, classes, extent]; sorted before SELECT
  Ints selected, counts;      // shapes [images, classes, limit] and [images, classes]
  Rows y;                     // shape [total, 3]
  Fault fault;                // set to the error number `site` if the threshold is not in [0, 1]
  uint tasks, classes, count, extent, limit;
  uint has_iou, has_least, centered;
  uint site;
} p;

shared uint is_kept;

struct Corners {
  vec2 low, high;
  float area;
};

Corners corners_of(vec4 b) {
  Corners c;
  if (p.centered != 0)
    c.low = b.yx - b.wz / 2, c.high = b.yx + b.wz / 2;
  else
    c.low = min(b.xy, b.zw), c.high = max(b.xy, b.zw);
  precise float area = (c.high.x - c.low.x) * (c.high.y - c.low.y);
  c.area = area;
  return c;
}
bool suppresses(Corners a, Corners b, float threshold) {
  const vec2 size = min(a.high, b.high) - max(a.low, b.low);
  if (!(size.x > 0 && size.y > 0) || a.area <= 0 || b.area <= 0) return false;
  precise float shared_area = size.x * size.y;
  precise float all = a.area + b.area;
  all -= shared_area;
  return shared_area / all > threshold;
}

void main() {
  const uint group = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (STAGE == KEYS) {
    const uint i = group * 256 + own, box = i % p.extent;
    if (i >= p.tasks * p.extent) return;
    Item item = Item(0xFFFFFFFFu, 0xFFFFFFFFu, box);  // for scores that are no candidates; sorted last
    if (box < p.count) {
      const float score = p.scores.at[i / p.extent * p.count + box];
      if (!isnan(score) && (p.has_least == 0 || score > p.least.at[0])) {
        const uint word = score == 0 ? 0 : floatBitsToUint(score);
        item.high = ~((word & 0x80000000u) != 0 ? ~word : word | 0x80000000u);
        item.low = 0;
      }
    }
    p.items.at[i] = item;
    return;
  }
  if (STAGE == WRITE) {
    const uint i = group * 256 + own, task = i / p.limit, k = i % p.limit;
    if (task >= p.tasks || k >= p.counts.at[task]) return;
    uint row = k;
    for (uint t = 0; t < task; ++t) row += p.counts.at[t];
    p.y.at[3 * row] = uvec2(task / p.classes, 0);
    p.y.at[3 * row + 1] = uvec2(task % p.classes, 0);
    p.y.at[3 * row + 2] = uvec2(p.selected.at[i], 0);
    return;
  }
  if (group >= p.tasks) return;
  const float threshold = p.has_iou != 0 ? p.iou.at[0] : 0.0;
  if (own == 0 && !(threshold >= 0 && threshold <= 1)) p.fault.site = p.site;
  const uint boxes = group / p.classes * p.count, items = group * p.extent, selected = group * p.limit;
  uint kept = 0;
  for (uint i = 0; i < p.count && kept < p.limit; ++i) {
    const Item item = p.items.at[items + i];
    if (item.low != 0) break;
    if (own == 0) is_kept = 1;
    barrier();
    const Corners box = corners_of(p.boxes.at[boxes + item.index]);
    for (uint k = own; k < kept; k += 256)
      if (suppresses(box, corners_of(p.boxes.at[boxes + p.selected.at[selected + k]]), threshold)) is_kept = 0;
    barrier();
    if (is_kept != 0) {
      if (own == 0) p.selected.at[selected + kept] = item.index;
      ++kept;
    }
    memoryBarrierBuffer();
    barrier();
  }
  if (own == 0) p.counts.at[group] = kept;
}
