// Writes instructions of SPIR-V, Vulkan's binary shader language: constants and computations on numbers.
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

/// The code of one function. Methods append instructions to it. Operands of an instruction have the same type unless stated otherwise.
class CodeWriter {
 public:
  CodeWriter(const CodeWriter&) = delete;
  CodeWriter& operator=(const CodeWriter&) = delete;

  /// Returns a constant, converted to the type.
  Value number(double value, Arithmetic type = Arithmetic::f32);
  Value bits(uint32_t word, Arithmetic type);  ///< returns the number of a 32-bit type that has these bits
  /// Appends a SPIR-V instruction with a result.
  Value op(uint16_t opcode, Arithmetic type, std::initializer_list<Value> operands);
  /// Appends an instruction of the extended set GLSL.std.450.
  Value ext(uint32_t instruction, Arithmetic type, std::initializer_list<Value> operands);
  /// Returns a * b + c in float32, rounded once or twice, but never reordered with surrounding operations.
  Value exact_mul_add(Value a, Value b, Value c);
  Value select(Value condition, Value yes, Value no);
  /// Converts like C++: floats to integers towards zero; to truth values by != 0.
  Value convert(Value value, Arithmetic type);
  /// Returns what an element of `dtype` keeps of the value: 16-bit floats round to the nearest, ties to even; narrow integers wrap.
  Value rounded(Value value, DType dtype);

  // The operands' type selects the instruction: floats, signed or unsigned integers.
  Value add(Value a, Value b);
  Value sub(Value a, Value b);
  Value mul(Value a, Value b);
  Value div(Value a, Value b);  ///< only for floats
  Value less(Value a, Value b);
  Value less_or_equal(Value a, Value b);
  Value equal(Value a, Value b);
  Value is_nan(Value a);
  Value logical_not(Value a);

 protected:
  CodeWriter() = default;
  ~CodeWriter() = default;

  uint32_t new_id() { return next_id_++; }
  /// Declares a type or constant; equal declarations are written once. @return its id
  uint32_t declare(uint16_t opcode, std::vector<uint32_t> operands, bool has_type);
  uint32_t type_of(Arithmetic type);
  void capability(uint32_t capability);
  static void emit(std::vector<uint32_t>& section, uint16_t opcode, std::initializer_list<uint32_t> operands);
  static void emit(std::vector<uint32_t>& section, uint16_t opcode, std::span<const uint32_t> operands);
  uint32_t instruction(uint16_t opcode, uint32_t type, std::initializer_list<uint32_t> operands);
  uint32_t constant(uint32_t word);

  uint32_t next_id_ = 1;
  std::vector<uint32_t> capabilities_, decorations_, declarations_, code_;
  std::map<std::vector<uint32_t>, uint32_t> declared_;
  std::vector<uint32_t> known_capabilities_;
  uint32_t ext_set_ = 0;  ///< id of the imported set GLSL.std.450

 private:
  Value rounded_to_half(Value value);
  Value rounded_to_bfloat(Value value);
};

}  // namespace treadle::gpu
