// Dropout in training: an invocation for each pair of elements, which share a block of random bits, the same as on the host.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "training.glsl"
#extension GL_EXT_shader_8bit_storage : require

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Mask { uint8_t at[]; };

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  Mask mask;          // null if it is not wanted
  uint has_mask, count;
  uvec2 key, stream;  // low word first, as the limit
  uvec2 limit;        // of 53 bits: elements below it are dropped
  float scale;
} p;

// Philox 4x32 with ten rounds, see kernels/random/philox.h.
uvec4 random_bits(uint index) {
  uvec4 counter = uvec4(index, 0, p.stream);
  uvec2 key = p.key;
  for (int round = 0; round < 10; ++round) {
    uint a_high, a_low, b_high, b_low;
    umulExtended(0xD2511F53u, counter.x, a_high, a_low);
    umulExtended(0xCD9E8D57u, counter.z, b_high, b_low);
    counter = uvec4(b_high ^ counter.y ^ key.x, b_low, a_high ^ counter.w ^ key.y, a_low);
    key += uvec2(0x9E3779B9u, 0xBB67AE85u);
  }
  return counter;
}

void write(uint element, uint high, uint low) {
  if (element >= p.count) return;
  const uint upper = high >> 11, lower = high << 21 | low >> 11;  // the 53 bits of the host's number
  const bool stays = upper > p.limit.y || (upper == p.limit.y && lower >= p.limit.x);
  p.y.at[element] = to_element(stays ? to_number(p.x.at[element]) * p.scale : 0.0);
  if (p.has_mask != 0) p.mask.at[element] = uint8_t(stays ? 1 : 0);
}

void main() {
  const uint pair = element_index();
  if (2 * pair >= p.count) return;
  const uvec4 bits = random_bits(pair);
  write(2 * pair, bits.x, bits.y);
  write(2 * pair + 1, bits.z, bits.w);
}
