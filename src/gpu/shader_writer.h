// Writes compute shaders in SPIR-V, Vulkan's binary shader language, for kernels whose code depends on the node: pointwise operators and
// chains of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <vector>

#include "treadle/dtype.h"

namespace treadle::gpu {

/// The types in which shaders compute. Narrower elements are converted when they are read and written.
enum class Arithmetic : uint8_t { f32, f64, i32, u32, i64, u64, boolean };

/// Determines the type in which elements of `dtype` are computed. @return false if shaders do not support such elements
bool arithmetic_of(DType dtype, Arithmetic& out);

/// A value that a shader has computed.
struct Value {
  uint32_t id = 0;
  Arithmetic type = Arithmetic::f32;
};

/// One shader, each invocation of which computes one element. Methods append instructions to its main function. Operands of an instruction
/// have the same type unless stated otherwise.
///
/// Push constants: the address of the output, then of each input (8 bytes each); the number of elements; extents 1 to rank - 1 of the index
/// space; then for each input, and before them for an output that is `strided`, `rank` strides in elements (4 bytes each, signed); then
/// parameters (float32).
class ShaderWriter {
 public:
  static constexpr uint32_t kGroupSize = 256;
  /// Work groups in a row; larger dispatches have several rows.
  static constexpr uint32_t kGroupsInRow = 32768;

  /// @param rank  dimensions of the index space, at least 1
  ShaderWriter(std::span<const DType> inputs, DType output, int rank, bool output_is_strided, int num_parameters = 0);

  /// Loads this invocation's element of an input.
  Value load(size_t input);
  /// A float32 that each dispatch gives, so that a shader serves all its values.
  Value parameter(size_t index);
  /// Writes the invocation's element of the output. The value has the output's arithmetic type.
  void store(Value value);
  /// Returns the shader's words. Called once.
  std::vector<uint32_t> finish();

  /// Returns a constant, converted to the type.
  Value number(double value, Arithmetic type = Arithmetic::f32);
  Value bits(uint32_t word, Arithmetic type);  ///< of a 32-bit type
  /// Appends a SPIR-V instruction with a result.
  Value op(uint16_t opcode, Arithmetic type, std::initializer_list<Value> operands);
  /// Appends an instruction of the extended set GLSL.std.450.
  Value ext(uint32_t instruction, Arithmetic type, std::initializer_list<Value> operands);
  /// Returns a * b + c in float32, rounded once or twice, but never reordered with surrounding operations.
  Value exact_mul_add(Value a, Value b, Value c);
  Value select(Value condition, Value yes, Value no);
  /// Converts like C++: floats to integers towards zero; to truth values by != 0.
  Value convert(Value value, Arithmetic type);

  // The operands' type selects the instruction: floats, signed or unsigned integers.
  Value add(Value a, Value b);
  Value sub(Value a, Value b);
  Value mul(Value a, Value b);
  Value div(Value a, Value b);  ///< for floats
  Value less(Value a, Value b);
  Value less_or_equal(Value a, Value b);
  Value equal(Value a, Value b);
  Value is_nan(Value a);
  Value logical_not(Value a);

 private:
  uint32_t new_id() { return next_id_++; }
  /// Declares a type or constant; equal declarations are written once. @return its id
  uint32_t declare(uint16_t opcode, std::vector<uint32_t> operands, bool has_type);
  uint32_t type_of(Arithmetic type);
  uint32_t element_type(DType dtype);
  uint32_t pointer_to_elements(DType dtype);
  void capability(uint32_t capability);
  void need(Arithmetic type);
  static void emit(std::vector<uint32_t>& section, uint16_t opcode, std::initializer_list<uint32_t> operands);
  static void emit(std::vector<uint32_t>& section, uint16_t opcode, std::span<const uint32_t> operands);
  uint32_t instruction(uint16_t opcode, uint32_t type, std::initializer_list<uint32_t> operands);
  uint32_t constant(uint32_t word);
  uint32_t push(size_t member);
  uint32_t element_pointer(size_t operand, DType dtype);
  void write_index();

  const std::vector<DType> inputs_;
  const DType output_;
  const int rank_;
  const bool output_is_strided_;
  uint32_t next_id_ = 1;
  std::vector<uint32_t> capabilities_, decorations_, declarations_, code_;
  std::map<std::vector<uint32_t>, uint32_t> declared_;
  std::vector<uint32_t> known_capabilities_;
  uint32_t ext_set_ = 0, main_ = 0, push_variable_ = 0, group_id_ = 0, local_index_ = 0;
  uint32_t merge_label_ = 0;
  uint32_t index_ = 0;                             // of the invocation's element, unsigned
  std::vector<uint32_t> position_;                 // along each dimension of the index space, signed
  size_t first_stride_ = 0, first_parameter_ = 0;  // the push constants
};

}  // namespace treadle::gpu
