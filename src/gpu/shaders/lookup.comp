// LabelEncoder: values for keys, which are found by binary search. OneHotEncoder: rows with a 1 at the key's position. Each invocation
// looks up one key.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KEYS = 0;
const uint WORD_KEYS = 0, LONG_KEYS = 1, FLOAT_KEYS = 2, DOUBLE_KEYS = 3;  // 32-bit and 64-bit integers, float32, float64
layout(constant_id = 1) const uint ONE_HOT = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Pairs { uvec2 at[]; };  // low word, high word
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Words y;
  Ints x;
  Pairs keys;      // the keys as 64-bit integers, in ascending order
  Ints places;     // index of the value of each key
  Words values;    // values of `words` words each; the last one is for unknown keys
  Fault fault;     // set to the error number `site` if a key is unknown; null: unknown keys are allowed
  uint count, key_count;
  uint words;      // words per value; if ONE_HOT, words per row
  uint otherwise;  // index of the value for unknown keys
  uint site;
} p;

// Returns the key as a 64-bit integer. Equal keys have equal integers: all NaN have the bits of -0, and both zeros are 0.
uvec2 key_of(uint i) {
  if (KEYS == WORD_KEYS) return uvec2(p.x.at[i], int(p.x.at[i]) < 0 ? 0xFFFFFFFFu : 0u);
  if (KEYS == LONG_KEYS) return uvec2(p.x.at[2 * i], p.x.at[2 * i + 1]);
  if (KEYS == FLOAT_KEYS) {
    uint word = p.x.at[i];
    if ((word & 0x7FFFFFFFu) > 0x7F800000u)
      word = 0x80000000u;
    else if (word == 0x80000000u)
      word = 0;
    return uvec2(word, int(word) < 0 ? 0xFFFFFFFFu : 0u);
  }
  const uvec2 pair = uvec2(p.x.at[2 * i], p.x.at[2 * i + 1]);
  const uint magnitude = pair.y & 0x7FFFFFFFu;
  if (magnitude > 0x7FF00000u || magnitude == 0x7FF00000u && pair.x != 0) return uvec2(0, 0x80000000u);
  return magnitude == 0 && pair.x == 0 ? uvec2(0) : pair;
}

void main() {
  const uint i = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (i >= p.count) return;
  const uvec2 key = key_of(i);
  uint low = 0, high = p.key_count;  // the first key that is not less than `key` is in [low, high]
  while (low < high) {
    const uint middle = (low + high) / 2;
    const uvec2 at = p.keys.at[middle];
    if (int(at.y) < int(key.y) || at.y == key.y && at.x < key.x)
      low = middle + 1;
    else
      high = middle;
  }
  const bool found = low < p.key_count && p.keys.at[low] == key;
  const uint place = found ? p.places.at[low] : p.otherwise;
  if (ONE_HOT == 0) {
    for (uint w = 0; w < p.words; ++w) p.y.at[i * p.words + w] = p.values.at[place * p.words + w];
    return;
  }
  for (uint w = 0; w < p.words; ++w) p.y.at[i * p.words + w] = WORD(0);
  if (found)
    p.y.at[i * p.words + place] = WORD(0x3F800000u);
  else if (p.site != 0)
    p.fault.site = p.site;
}
