// Inserts a chain of pointwise operators into the shader of the matrix product or convolution before it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "device/vulkan/shader.h"
#include "gpu/chain.h"
#include "graph/kernel.h"

namespace treadle::gpu {

class Epilogue {
 public:
  static constexpr size_t kMaxOperands = 3;

  /// Returns the epilogue of a node like ChainedConv; an empty one for a node without a chain.
  /// @return nullopt if the shaders cannot compute the chain, or do not support how its operands are broadcast
  static std::optional<Epilogue> of(const Graph& graph, const Node& node);

  std::string product;  ///< name of the operator (MatMul, Conv ...) whose result the chain reads

  /// Returns the shader of a file (shaders.h) with the chain inserted; null if the file is not compiled for the dtype.
  const vulkan::Shader* shader(const std::string& file, DType dtype) const;
  /// Returns the addresses of the chain's operands for a part of the result. The part begins `element_bytes` after the start of the result;
  /// for operands with one element per row, it begins `row_bytes` after their start.
  std::array<const void*, kMaxOperands> operands(RunContext& c, int64_t element_bytes, int64_t row_bytes) const;

 private:
  /// How an operand is broadcast. The numbers are defined in shaders/epilogue.glsl.
  enum Lies : uint32_t { kNone, kNumber, kAsResult, kByChannel, kByRow };
  static Lies lies(const Graph& graph, ValueId operand, ValueId result, bool is_convolution);

  Formula formula_;   // null if there is no chain
  size_t first_ = 0;  // index of the chain's first operand among the inputs
  std::array<uint32_t, kMaxOperands> lies_{};
};

}  // namespace treadle::gpu
