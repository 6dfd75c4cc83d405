// Lets a kernel compute in another type than its operands have: the inputs are converted to scratch memory, and the result is converted
// from there.
#pragma once

#include "gpu/launch.h"
#include "ops/widen.h"

namespace treadle::gpu {

/// The type in which shaders without code for 16-bit floats compute.
inline DType wide_type(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16 ? DType::float32 : dtype; }

/// Returns the type in which shaders compare elements. For integers without code in shaders, it is a type that represents all their
/// numbers. uint64 is returned unchanged, because there is no such type for it.
inline DType compared_type(DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::int8:
    case DType::uint8:
    case DType::int16:
    case DType::uint16: return DType::int32;
    case DType::uint32: return DType::int64;
    default: return dtype;
  }
}

struct ConvertedOperand {
  DType given = DType::float32, computed = DType::float32;
  int64_t count = 0, offset = 0;  ///< `offset` in scratch memory is in bytes; it is used only if the types differ

  static ConvertedOperand reserve(ops::ScratchLayout& layout, DType given, DType computed, int64_t count) {
    ConvertedOperand operand{given, computed, count32(count), 0};
    if (given != computed) operand.offset = layout.take(static_cast<size_t>(count) * bits_of(computed) / 8);
    return operand;
  }
  /// Returns the elements of an input in the computed type; null if it is absent.
  const void* read(RunContext& c, int input) const {
    const void* const elements = c.in<void>(input);
    return elements ? convert_elements(given, elements, computed, ops::scratch_at(c, offset), count) : nullptr;
  }
  /// Returns where to compute an output; store() then converts it.
  void* result(RunContext& c, int output) const { return given == computed ? c.out<void>(output) : ops::scratch_at(c, offset); }
  void store(RunContext& c, int output) const {
    if (given != computed) convert_elements(computed, ops::scratch_at(c, offset), given, c.out<void>(output), count);
  }
};

}  // namespace treadle::gpu
