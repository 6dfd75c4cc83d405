// The chain of pointwise operators behind a product or convolution, as code of its shader.
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

  /// The epilogue of a ChainedConv and the like. Of a node without a chain, the empty one.
  /// @return nullopt if the shaders cannot compute the chain, or reach its operands
  static std::optional<Epilogue> of(const Graph& graph, const Node& node);

  std::string product;  ///< the operator whose result the chain reads

  /// Returns the shader of a file (shaders.h) with this epilogue; null if it is not compiled for the type.
  const vulkan::Shader* shader(const std::string& file, DType dtype) const;
  /// Addresses of the operands for the part of the result that begins so many bytes, and rows of so many bytes, behind its start.
  std::array<const void*, kMaxOperands> operands(RunContext& c, int64_t element_bytes, int64_t row_bytes) const;

 private:
  /// How an operand lies, as shaders/epilogue.glsl says.
  enum Lies : uint32_t { kNone, kNumber, kAsResult, kByChannel, kByRow };
  static Lies lies(const Graph& graph, ValueId operand, ValueId result, bool is_convolution);

  Formula formula_;   // null: none
  size_t first_ = 0;  // of the operands, among the node's inputs
  std::array<uint32_t, kMaxOperands> lies_{};
};

}  // namespace treadle::gpu
