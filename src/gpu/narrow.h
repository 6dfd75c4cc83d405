// Reads and writes elements (codes) of at most 8 bits that shaders have no arithmetic for: floats of 8, 6 and 4 bits, packed integers of 4
// and 2 bits.
#pragma once

#include <cstdint>

#include "device/vulkan/shader.h"
#include "graph/attributes.h"
#include "treadle/dtype.h"

namespace treadle::gpu {

bool is_narrow(DType dtype);
/// Returns the shader that converts codes of `dtype` to float32.
const vulkan::Shader* narrow_reader(DType dtype);
/// Returns the shader that converts float32 to codes of `dtype`. If `from_ints`, it takes the low bits of 32-bit integers instead.
/// @param attributes  those of Cast: `saturate` and `round_mode`
const vulkan::Shader* narrow_writer(DType dtype, const Attributes& attributes, bool from_ints = false);
void read_narrow(const vulkan::Shader& reader, const void* codes, void* numbers, int64_t count);
void write_narrow(const vulkan::Shader& writer, DType dtype, const void* numbers, void* codes, int64_t count);

}  // namespace treadle::gpu
