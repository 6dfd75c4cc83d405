// Dropout in training. Each invocation computes two elements, which share a block of random bits. The bits are the same as on the host.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"
#include "philox.glsl"
#include "training.glsl"
#extension GL_EXT_shader_8bit_storage : require

layout(local_size_x = 256) in;

layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Mask { uint8_t at[]; };

layout(push_constant, scalar) uniform Push {
  Elements y, x;
  Mask mask;          // null if the mask is not used
  uint has_mask, count;
  uvec2 key, stream;  // the low word is first, also in `limit`
  uvec2 limit;        // an element with a 53-bit random number below this limit is dropped
  float scale;
} p;

void write(uint element, uint high, uint low) {
  if (element >= p.count) return;
  const uint upper = high >> 11, lower = high << 21 | low >> 11;  // the same 53 bits as on the host
  const bool stays = upper > p.limit.y || (upper == p.limit.y && lower >= p.limit.x);
  p.y.at[element] = to_element(stays ? to_number(p.x.at[element]) * p.scale : 0.0);
  if (p.has_mask != 0) p.mask.at[element] = uint8_t(stays ? 1 : 0);
}

void main() {
  const uint pair = element_index();
  if (2 * pair >= p.count) return;
  const uvec4 bits = random_bits(pair, p.stream, p.key);
  write(2 * pair, bits.x, bits.y);
  write(2 * pair + 1, bits.z, bits.w);
}
