// Writes the chain of pointwise operators after a product or convolution into the shader of the product.
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

  /// Returns the epilogue of a ChainedConv or the like; an empty one for a node without a chain.
  /// @return nullopt if the shaders cannot compute the chain, or its operands are broadcast in another way
  static std::optional<Epilogue> of(const Graph& graph, const Node& node);

  std::string product;  ///< name of the operator whose result the chain reads

  /// Returns the shader of a file (shaders.h) with this epilogue; null if the file is not compiled for the type.
  const vulkan::Shader* shader(const std::string& file, DType dtype) const;
  /// Returns the addresses of the operands for a part of the result. `element_bytes` and, for operands with one element per row,
  /// `row_bytes` are the distances of the part from the start.
  std::array<const void*, kMaxOperands> operands(RunContext& c, int64_t element_bytes, int64_t row_bytes) const;

 private:
  /// How an operand is broadcast, as defined in shaders/epilogue.glsl.
  enum Lies : uint32_t { kNone, kNumber, kAsResult, kByChannel, kByRow };
  static Lies lies(const Graph& graph, ValueId operand, ValueId result, bool is_convolution);

  Formula formula_;   // null if there is no chain
  size_t first_ = 0;  // position of the first operand among the node's inputs
  std::array<uint32_t, kMaxOperands> lies_{};
};

}  // namespace treadle::gpu
