// Replaces code in a compiled shader: the function `epilogue` of shaders/epilogue.glsl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/code_writer.h"

namespace treadle::gpu {

/// Writes new code for the function `epilogue` of a shader. The function computes a float32 from float32 numbers.
class EpilogueWriter : public CodeWriter {
 public:
  /// Finds the function in the shader. @throws Error(internal) if the shader does not have it
  explicit EpilogueWriter(std::span<const uint32_t> shader);

  Value argument(size_t index);
  /// Returns the words of the shader in which the function returns `result`. May be called once.
  std::vector<uint32_t> finish(Value result);

 private:
  void read(size_t at);
  void remember(size_t at);

  const std::span<const uint32_t> shader_;
  std::vector<uint32_t> arguments_;  // ids of the pointers that are the function's arguments
  uint32_t function_ = 0;
  bool is_inside_ = false;  // used while the shader is read: the instruction is inside the function
  // Positions in the shader: the end of the capabilities, the beginnings of types and constants, of functions, and of the function's old
  // code, and the end of that code.
  size_t capabilities_end_ = 0, types_ = 0, functions_ = 0, body_ = 0, body_end_ = 0;
};

}  // namespace treadle::gpu
