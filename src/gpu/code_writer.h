// Writes instructions in SPIR-V, Vulkan's binary shader language: constants, and computations on numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <vector>

#include "treadle/dtype.h"

namespace treadle::gpu {

/// The types in which shaders compute. Elements of narrower types are converted when a shader reads and writes them.
enum class Arithmetic : uint8_t { f32, f64, i32, u32, i64, u64, boolean };

/// Sets `out` to the type in which shaders compute elements of `dtype`. @return false if shaders do not support this dtype
bool arithmetic_of(DType dtype, Arithmetic& out);

/// A value that shader code has computed: the id and the type of an instruction's result.
struct Value {
  uint32_t id = 0;
  Arithmetic type = Arithmetic::f32;
};

/// The code of one function. The methods append instructions. An instruction's operands must have the same type, unless stated otherwise.
class CodeWriter {
 public:
  CodeWriter(const CodeWriter&) = delete;
  CodeWriter& operator=(const CodeWriter&) = delete;

  /// Returns a constant of the given type.
  Value number(double value, Arithmetic type = Arithmetic::f32);
  Value bits(uint32_t word, Arithmetic type);  ///< returns the number with these bits, of a 32-bit type
  /// Appends a SPIR-V instruction that has a result. Returns the result.
  Value op(uint16_t opcode, Arithmetic type, std::initializer_list<Value> operands);
  /// Appends an instruction of the extended instruction set GLSL.std.450.
  Value ext(uint32_t instruction, Arithmetic type, std::initializer_list<Value> operands);
  /// Returns a * b + c in float32, rounded once or twice. Compilers may not reorder it with surrounding operations.
  Value exact_mul_add(Value a, Value b, Value c);
  Value select(Value condition, Value yes, Value no);
  /// Converts as C++ does: floats to integers by rounding toward zero, numbers to booleans by != 0.
  Value convert(Value value, Arithmetic type);
  /// Rounds a value as an element of `dtype` stores it: 16-bit floats to nearest, ties to even; narrow integers wrap around.
  Value rounded(Value value, DType dtype);

  // The type of the operands selects the instruction for floats, signed or unsigned integers.
  Value add(Value a, Value b);
  Value sub(Value a, Value b);
  Value mul(Value a, Value b);
  Value div(Value a, Value b);  ///< for floats only
  Value less(Value a, Value b);
  Value less_or_equal(Value a, Value b);
  Value equal(Value a, Value b);
  Value is_nan(Value a);
  Value logical_not(Value a);

 protected:
  CodeWriter() = default;
  ~CodeWriter() = default;

  uint32_t new_id() { return next_id_++; }
  /// Declares a type or constant and returns its id. A second declaration of the same returns the same id.
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
  uint32_t ext_set_ = 0;  ///< id of the imported instruction set GLSL.std.450

 private:
  Value rounded_to_half(Value value);
  Value rounded_to_bfloat(Value value);
};

}  // namespace treadle::gpu
