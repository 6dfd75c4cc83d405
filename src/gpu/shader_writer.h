// Writes compute shaders for kernels whose code depends on the node: pointwise operators and chains of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/code_writer.h"

namespace treadle::gpu {

/// One shader, each invocation of which computes one element.
///
/// Push constants: the address of the output, then of each input (8 bytes each); the number of elements; extents 1 to rank - 1 of the index
/// space; then where operands lie. Strided: for each input, and before them for an output that is strided, `rank` strides in elements
/// (4 bytes each, signed). Broadcast: a byte for each input, of which bit i says whether it extends along dimension i, filled up to words.
class ShaderWriter : public CodeWriter {
 public:
  static constexpr uint32_t kGroupSize = 256;
  /// Number of work groups in a row of a dispatch; larger dispatches have several rows.
  static constexpr uint32_t kGroupsInRow = 32768;

  enum class Inputs : uint8_t {
    strided,
    broadcast,  ///< operands are dense arrays whose extents are those of the index space, or 1
  };

  /// @param rank  number of dimensions of the index space, at least 1
  ShaderWriter(std::span<const DType> inputs, DType output, int rank, bool output_is_strided, Inputs layout = Inputs::strided);

  /// Loads this invocation's element of an input.
  Value load(size_t input);
  /// Writes the invocation's element of the output. The value has the output's arithmetic type.
  void store(Value value);
  /// Returns the words of the shader. May be called once.
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
  uint32_t index_ = 0;              // index of the invocation's element, unsigned
  std::vector<uint32_t> position_;  // the invocation's position along each dimension of the index space, signed
  size_t first_place_ = 0;          // number of the first push constant that says where operands lie
};

}  // namespace treadle::gpu
