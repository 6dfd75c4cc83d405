// Element types: all of ONNX's, with ONNX's numbers (TensorProto.DataType, IR 14).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "treadle/export.h"

namespace treadle {

enum class DType : uint8_t {
  undefined = 0,
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  uint16 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  string = 8,
  boolean = 9,
  float16 = 10,
  float64 = 11,
  uint32 = 12,
  uint64 = 13,
  complex64 = 14,
  complex128 = 15,
  bfloat16 = 16,
  float8e4m3fn = 17,
  float8e4m3fnuz = 18,
  float8e5m2 = 19,
  float8e5m2fnuz = 20,
  uint4 = 21,
  int4 = 22,
  float4e2m1 = 23,
  float8e8m0 = 24,
  uint2 = 25,
  int2 = 26,
  float6e2m3 = 27,
  float6e3m2 = 28,
};
inline constexpr int kNumDTypes = 29;

/// Returns the bits per element: 2, 4 or 6 for packed types; the size of std::string for `string`.
TREADLE_API size_t bits_of(DType dtype) noexcept;
/// Returns the name as NumPy and ONNX spell it: "float32", "int64", "bool" …
TREADLE_API std::string_view name_of(DType dtype) noexcept;
/// Returns the short name, for printing types such as f32[1,3,224,224]: "f32", "i64", "bool" …
TREADLE_API std::string_view short_name_of(DType dtype) noexcept;
/// Returns the dtype whose name_of() is `name`; `undefined` for an unknown name.
TREADLE_API DType dtype_from_name(std::string_view name) noexcept;
/// Returns the bytes of `num_elements` elements, packed as in ONNX (the first element in the low bits).
/// @throws Error(resource_exhausted) on overflow
TREADLE_API size_t size_bytes(DType dtype, int64_t num_elements);

TREADLE_API bool is_float(DType dtype) noexcept;    ///< any floating-point type, 4 to 64 bits
TREADLE_API bool is_integer(DType dtype) noexcept;  ///< signed or unsigned, 2 to 64 bits; not bool
TREADLE_API bool is_signed_integer(DType dtype) noexcept;
TREADLE_API bool is_sub_byte(DType dtype) noexcept;

}  // namespace treadle
