// Replaces the code of a function in a compiled shader: the function `epilogue` of shaders/epilogue.glsl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/code_writer.h"

namespace treadle::gpu {

/// Writes new code for the function `epilogue` in a copy of a shader. The function computes a float32 from several float32 arguments.
class EpilogueWriter : public CodeWriter {
 public:
  /// Finds the function `epilogue`. @throws Error(internal) if the shader lacks it
  explicit EpilogueWriter(std::span<const uint32_t> shader);

  Value argument(size_t index);
  /// Returns the 32-bit words of the new shader, where the function returns `result`. May be called only once.
  std::vector<uint32_t> finish(Value result);

 private:
  void read(size_t at);
  void remember(size_t at);

  const std::span<const uint32_t> shader_;
  std::vector<uint32_t> arguments_;  // ids of the function's arguments, which are pointers
  uint32_t function_ = 0;
  bool is_inside_ = false;  // set while the shader is read: the instruction is in the function
  // Positions in the old shader: the end of the capabilities; the start of types and constants, of functions, and of the function's code;
  // and the end of this code.
  size_t capabilities_end_ = 0, types_ = 0, functions_ = 0, body_ = 0, body_end_ = 0;
};

}  // namespace treadle::gpu
