// Writes code into a compiled shader: the function `epilogue` of shaders/epilogue.glsl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/code_writer.h"

namespace treadle::gpu {

/// The new code of a shader's function `epilogue`, float32 of float32s.
class EpilogueWriter : public CodeWriter {
 public:
  /// @throws Error(internal) if the shader has no such function
  explicit EpilogueWriter(std::span<const uint32_t> shader);

  Value argument(size_t index);
  /// Returns the shader's words, with the function returning `result`. Called once.
  std::vector<uint32_t> finish(Value result);

 private:
  void read(size_t at);
  void remember(size_t at);

  const std::span<const uint32_t> shader_;
  std::vector<uint32_t> arguments_;  // pointers
  uint32_t function_ = 0;
  bool is_inside_ = false;  // of the function, while reading
  // Positions in the shader: behind the capabilities, before types and constants, before functions, and the function's old code.
  size_t capabilities_end_ = 0, types_ = 0, functions_ = 0, body_ = 0, body_end_ = 0;
};

}  // namespace treadle::gpu
