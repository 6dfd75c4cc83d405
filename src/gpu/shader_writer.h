// Writes compute shaders at run time, for kernels whose code depends on the node: pointwise operators and chains of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/code_writer.h"

namespace treadle::gpu {

/// Writes a compute shader. Each of its invocations computes one element.
///
/// Push constants: the address of the output, then of each input (8 bytes each); the number of elements; extents 1 to rank - 1 of the index
/// space; then the layout of the operands. Strided: `rank` strides in elements (4 bytes each, signed) per input, preceded by those of the
/// output if it is strided. Broadcast: a byte per input, padded to words; bit i is 0 if the input is broadcast along dimension i.
class ShaderWriter : public CodeWriter {
 public:
  static constexpr uint32_t kGroupSize = 256;
  /// Number of work groups in a row of a dispatch. Larger dispatches have several rows.
  static constexpr uint32_t kGroupsInRow = 32768;

  enum class Inputs : uint8_t {
    strided,
    broadcast,  ///< inputs are contiguous; each of their extents is that of the index space, or 1
  };

  /// @param rank  number of dimensions of the index space, at least 1
  ShaderWriter(std::span<const DType> inputs, DType output, int rank, bool output_is_strided, Inputs layout = Inputs::strided);

  /// Loads the element of an input that belongs to this invocation.
  Value load(size_t input);
  /// Stores the element of the output that belongs to this invocation. The value must have the output's arithmetic type.
  void store(Value value);
  /// Returns the 32-bit words of the shader. May be called only once.
  std::vector<uint32_t> finish();

 private:
  uint32_t element_type(DType dtype);
  uint32_t pointer_to_elements(DType dtype);
  uint32_t push(size_t member);
  uint32_t element_pointer(size_t operand, DType dtype);
  uint32_t strided_place(size_t operand);
  uint32_t broadcast_place(size_t input);
  void write_index();

  const std::vector<DType> inputs_;
  const DType output_;
  const int rank_;
  const bool output_is_strided_;
  const Inputs layout_;
  uint32_t main_ = 0, push_variable_ = 0, group_id_ = 0, local_index_ = 0;
  uint32_t merge_label_ = 0;
  uint32_t index_ = 0;              // unsigned index of the invocation's element
  std::vector<uint32_t> position_;  // signed position of this element along each dimension of the index space
  size_t first_place_ = 0;          // index of the first push constant that describes the operands' layout
};

}  // namespace treadle::gpu
