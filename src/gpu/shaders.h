// Finds the shaders of src/gpu/shaders/, which the build compiles into the library.
#pragma once

#include <span>
#include <string>

#include "device/vulkan/shader.h"
#include "treadle/dtype.h"

namespace treadle::gpu {

/// Returns the shader that the build has compiled from a file for elements of `dtype`, with these specialization constants. Null if the
/// file is not compiled for this dtype.
const vulkan::Shader* find_shader(const std::string& file, DType dtype, std::span<const uint32_t> constants = {});
/// Returns the 32-bit words of a compiled shader; empty if the file is not compiled for this dtype.
std::span<const uint32_t> find_code(const std::string& file, DType dtype);
/// Returns a shader that only copies elements, as words of 1, 2 or 4 bytes.
const vulkan::Shader* find_moving_shader(const std::string& file, size_t word_bytes, std::span<const uint32_t> constants = {});

}  // namespace treadle::gpu
