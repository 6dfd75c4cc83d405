// TopK of rows. If KEYS, each invocation makes the item (sort key) of an element; else each writes an element that the sorted items name.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "items.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KEYS = 0;
layout(constant_id = 1) const uint LARGEST = 1;
layout(constant_id = 2) const uint UNSIGNED = 0;  // 1: the 64-bit integers are unsigned

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Places { uvec2 at[]; };  // indices of 64 bits

layout(push_constant, scalar) uniform Push {
  Elements values, x;
  Places places;        // values and places may be null
  Items items;          // shape [rows, items per row]
  uint rows, extent, inner;
  uint item_extent, k;
  uint has_values, has_places;
} p;

// Returns an unsigned integer (high, low) that sorts like the element. NaN comes after all numbers, and -0 equals 0.
uvec2 key_of(NUMBER x) {
#if defined(ELEMENT_I32)
  return uvec2(uint(x) ^ 0x80000000u, 0);
#elif defined(ELEMENT_I64)
  return uvec2(uint(uint64_t(x) >> 32) ^ (UNSIGNED != 0 ? 0u : 0x80000000u), uint(uint64_t(x)));
#elif defined(ELEMENT_F64)
  if (isnan(x)) return uvec2(0xFFFFFFFFu);
  const uvec2 words = x == 0 ? uvec2(0) : unpackDouble2x32(x).yx;
  return (words.x & 0x80000000u) != 0 ? ~words : uvec2(words.x | 0x80000000u, words.y);
#else
  if (isnan(x)) return uvec2(0xFFFFFFFFu, 0);
  const uint word = x == 0 ? 0 : floatBitsToUint(x);
  return uvec2((word & 0x80000000u) != 0 ? ~word : word | 0x80000000u, 0);
#endif
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex, width = KEYS != 0 ? p.item_extent : p.k;
  if (i >= p.rows * width) return;
  const uint row = i / width, at = i % width;
  const uint start = row / p.inner * p.extent * p.inner + row % p.inner;
  if (KEYS != 0) {
    uvec2 key = uvec2(0xFFFFFFFFu);  // sorted after all elements, because its index is larger, too
    if (at < p.extent) {
      key = key_of(to_number(p.x.at[start + at * p.inner]));
      if (LARGEST != 0) key = ~key;
    }
    p.items.at[i] = Item(key.x, key.y, at);
    return;
  }
  const uint chosen = p.items.at[row * p.item_extent + at].index, to = row / p.inner * p.k * p.inner + row % p.inner + at * p.inner;
  if (p.has_values != 0) p.values.at[to] = p.x.at[start + chosen * p.inner];
  if (p.has_places != 0) p.places.at[to] = uvec2(chosen, 0);
}
