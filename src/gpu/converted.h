// Lets a kernel compute in another dtype than that of its operands: inputs are converted into scratch memory, and the result is converted
// from there.
#pragma once

#include "gpu/launch.h"
#include "ops/widen.h"

namespace treadle::gpu {

/// The dtype in which shaders compute if they have no code for 16-bit floats.
inline DType wide_type(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16 ? DType::float32 : dtype; }

/// Returns the dtype in which shaders compare elements. For integers that shaders have no code for, it is a dtype that includes all their
/// values. uint64 is returned unchanged, because there is no such dtype for it.
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
  int64_t count = 0, offset = 0;  ///< `offset` in scratch memory, in bytes; used only if the dtypes differ

  static ConvertedOperand reserve(ops::ScratchLayout& layout, DType given, DType computed, int64_t count) {
    ConvertedOperand operand{given, computed, count32(count), 0};
    if (given != computed) operand.offset = layout.take(static_cast<size_t>(count) * bits_of(computed) / 8);
    return operand;
  }
  /// Returns the address of an input's elements in the computed dtype; null if the input is absent.
  const void* read(RunContext& c, int input) const {
    const void* const elements = c.in<void>(input);
    return elements ? convert_elements(given, elements, computed, ops::scratch_at(c, offset), count) : nullptr;
  }
  /// Returns the address at which to compute an output. store() then converts the result to the output's dtype.
  void* result(RunContext& c, int output) const { return given == computed ? c.out<void>(output) : ops::scratch_at(c, offset); }
  void store(RunContext& c, int output) const {
    if (given != computed) convert_elements(computed, ops::scratch_at(c, offset), given, c.out<void>(output), count);
  }
};

}  // namespace treadle::gpu
