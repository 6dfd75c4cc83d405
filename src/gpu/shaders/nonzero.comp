// NonZero and similar operators, in two stages. First, each group counts the nonzero elements of its part. Then each group writes the
// indices of its nonzero elements, in order, after those of earlier groups.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "words.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint COUNT = 0;
// Bytes of a float in its last word; 0: the elements are not floats. For floats the sign bit is ignored, so that -0 is treated as 0.
layout(constant_id = 1) const uint FLOATS = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Places { uvec2 at[]; };  // indices of 64 bits

layout(push_constant, scalar) uniform Push {
  Words x;
  Ints counts;          // number of nonzero elements per part
  Places y;             // shape [rank, total]
  uint count, words;    // number of elements; words per element
  uint parts, part;     // number of parts; elements per part, a multiple of 256
  uint rank, total;
  uint dims[8];
} p;

shared uint places[256];

bool is_marked(uint i) {
  if (i >= p.count) return false;
  uint bits = 0;
  for (uint w = 0; w < p.words; ++w) {
    uint word = uint(p.x.at[i * p.words + w]);
    // Moves the float's bytes to the top of the word, which removes the sign bit.
    if (FLOATS != 0 && w + 1 == p.words) word <<= 32 - 8 * FLOATS + 1;
    bits |= word;
  }
  return bits != 0;
}

// Returns how many invocations of the group, up to and including this one, have a nonzero element.
uint marked_up_to(bool own_mark) {
  const uint own = gl_LocalInvocationIndex;
  places[own] = own_mark ? 1 : 0;
  barrier();
  for (uint reach = 1; reach < 256; reach *= 2) {
    const uint before = own >= reach ? places[own - reach] : 0;
    barrier();
    places[own] += before;
    barrier();
  }
  return places[own];
}

void main() {
  const uint group = gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x, own = gl_LocalInvocationIndex;
  if (group >= p.parts) return;
  uint next = 0;
  for (uint g = 0; COUNT == 0 && g < group; ++g) next += p.counts.at[g];
  for (uint first = group * p.part; first < (group + 1) * p.part; first += 256) {
    const uint i = first + own;
    const bool mark = is_marked(i);
    const uint place = next + marked_up_to(mark) - 1;
    next += places[255];
    barrier();
    if (COUNT != 0 || !mark) continue;
    uint rest = i;
    for (uint axis = p.rank; axis > 0; --axis) {
      p.y.at[(axis - 1) * p.total + place] = uvec2(rest % p.dims[axis - 1], 0);
      rest /= p.dims[axis - 1];
    }
  }
  if (COUNT != 0 && own == 0) p.counts.at[group] = next;
}
