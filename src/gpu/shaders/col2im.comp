// Col2Im with up to three axes. Each invocation computes one element of the image: the sum of the block elements that are placed on it.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
  Elements y, x;  // x is [planes, elements of a block, blocks]
  uint count;     // number of elements of y
  ivec3 image, blocks, kernel, stride, dilation, pad;  // kernel: extents of a block
} p;

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const uint pixels = uint(p.image.x * p.image.y * p.image.z), pixel = element % pixels;
  const uvec3 size = uvec3(p.image);
  const ivec3 place = ivec3(pixel / (size.y * size.z), pixel / size.z % size.y, pixel % size.z) + p.pad;
  const uint num_blocks = uint(p.blocks.x * p.blocks.y * p.blocks.z);
  const uint plane = element / pixels * uint(p.kernel.x * p.kernel.y * p.kernel.z) * num_blocks;
  NUMBER sum = NUMBER(0);
  for (int d = 0; d < p.kernel.x; ++d)
    for (int h = 0; h < p.kernel.y; ++h)
      for (int w = 0; w < p.kernel.z; ++w) {
        const ivec3 from = place - ivec3(d, h, w) * p.dilation, block = from / p.stride;
        if (any(lessThan(from, ivec3(0))) || block * p.stride != from || any(greaterThanEqual(block, p.blocks))) continue;
        const uint tap = uint((d * p.kernel.y + h) * p.kernel.z + w);
        sum += to_number(p.x.at[plane + tap * num_blocks + uint((block.x * p.blocks.y + block.y) * p.blocks.z + block.z)]);
      }
  p.y.at[element] = to_element(sum);
}
