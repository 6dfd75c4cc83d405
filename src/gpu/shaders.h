// Finds the shaders of src/gpu/shaders/, which the build compiles into the library.
#pragma once

#include <span>
#include <string>

#include "device/vulkan/shader.h"
#include "treadle/dtype.h"

namespace treadle::gpu {

/// Returns the shader that is compiled from a file for elements of `dtype`, with its specialization constants. Null if the file is not
/// compiled for this type.
const vulkan::Shader* find_shader(const std::string& file, DType dtype, std::span<const uint32_t> constants = {});
/// Returns the words of a compiled shader; empty if it is not compiled for that type.
std::span<const uint32_t> find_code(const std::string& file, DType dtype);
/// Returns the shader for elements that are only copied, as words of 1, 2 or 4 bytes.
const vulkan::Shader* find_moving_shader(const std::string& file, size_t word_bytes, std::span<const uint32_t> constants = {});

}  // namespace treadle::gpu
