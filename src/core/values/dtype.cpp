#include "treadle/dtype.h"

#include <array>
#include <string>

#include "core/base/checked.h"

namespace treadle {
namespace {

enum class Family : uint8_t { other, floating, signed_integer, unsigned_integer };

struct DTypeInfo {
  std::string_view name, short_name;
  size_t bits;
  Family family;
};

// Properties of each dtype, indexed by DType.
constexpr std::array<DTypeInfo, kNumDTypes> kInfo = {{
    {"undefined", "?", 0, Family::other},
    {"float32", "f32", 32, Family::floating},
    {"uint8", "u8", 8, Family::unsigned_integer},
    {"int8", "i8", 8, Family::signed_integer},
    {"uint16", "u16", 16, Family::unsigned_integer},
    {"int16", "i16", 16, Family::signed_integer},
    {"int32", "i32", 32, Family::signed_integer},
    {"int64", "i64", 64, Family::signed_integer},
    {"string", "str", sizeof(std::string) * 8, Family::other},
    {"bool", "bool", 8, Family::other},
    {"float16", "f16", 16, Family::floating},
    {"float64", "f64", 64, Family::floating},
    {"uint32", "u32", 32, Family::unsigned_integer},
    {"uint64", "u64", 64, Family::unsigned_integer},
    {"complex64", "c64", 64, Family::other},
    {"complex128", "c128", 128, Family::other},
    {"bfloat16", "bf16", 16, Family::floating},
    {"float8e4m3fn", "f8e4m3fn", 8, Family::floating},
    {"float8e4m3fnuz", "f8e4m3fnuz", 8, Family::floating},
    {"float8e5m2", "f8e5m2", 8, Family::floating},
    {"float8e5m2fnuz", "f8e5m2fnuz", 8, Family::floating},
    {"uint4", "u4", 4, Family::unsigned_integer},
    {"int4", "i4", 4, Family::signed_integer},
    {"float4e2m1", "f4e2m1", 4, Family::floating},
    {"float8e8m0", "f8e8m0", 8, Family::floating},
    {"uint2", "u2", 2, Family::unsigned_integer},
    {"int2", "i2", 2, Family::signed_integer},
    {"float6e2m3", "f6e2m3", 6, Family::floating},
    {"float6e3m2", "f6e3m2", 6, Family::floating},
}};

const DTypeInfo& info(DType dtype) {
  auto index = static_cast<size_t>(dtype);
  return kInfo[index < kInfo.size() ? index : 0];
}

}  // namespace

size_t bits_of(DType dtype) noexcept { return info(dtype).bits; }
std::string_view name_of(DType dtype) noexcept { return info(dtype).name; }
std::string_view short_name_of(DType dtype) noexcept { return info(dtype).short_name; }
bool is_float(DType dtype) noexcept { return info(dtype).family == Family::floating; }
bool is_signed_integer(DType dtype) noexcept { return info(dtype).family == Family::signed_integer; }
bool is_integer(DType dtype) noexcept {
  return info(dtype).family == Family::signed_integer || info(dtype).family == Family::unsigned_integer;
}
bool is_sub_byte(DType dtype) noexcept { return bits_of(dtype) > 0 && bits_of(dtype) < 8; }

DType dtype_from_name(std::string_view name) noexcept {
  for (size_t i = 1; i < kInfo.size(); ++i)
    if (kInfo[i].name == name) return static_cast<DType>(i);
  return DType::undefined;
}

size_t size_bytes(DType dtype, int64_t num_elements) {
  if (num_elements < 0) throw Error(ErrorCode::invalid_argument, "a negative number of elements: " + std::to_string(num_elements));
  auto bits = static_cast<int64_t>(bits_of(dtype));
  if (bits < 8) return static_cast<size_t>(checked_add(checked_mul(num_elements, bits), 7) / 8);
  return static_cast<size_t>(checked_mul(num_elements, bits / 8));
}

}  // namespace treadle
