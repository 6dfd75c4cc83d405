#include "gpu/code_writer.h"

#include <spirv/unified1/GLSL.std.450.h>

#include <algorithm>
#include <bit>
#include <spirv/unified1/spirv.hpp>

namespace treadle::gpu {
namespace {

bool is_float_type(Arithmetic type) { return type == Arithmetic::f32 || type == Arithmetic::f64; }
bool is_signed_type(Arithmetic type) { return type == Arithmetic::i32 || type == Arithmetic::i64; }
bool is_wide(Arithmetic type) { return type == Arithmetic::f64 || type == Arithmetic::i64 || type == Arithmetic::u64; }

}  // namespace

bool arithmetic_of(DType dtype, Arithmetic& out) {
  switch (dtype) {
    case DType::float32:
    case DType::float16:
    case DType::bfloat16: out = Arithmetic::f32; return true;
    case DType::float64: out = Arithmetic::f64; return true;
    case DType::int8:
    case DType::int16:
    case DType::int32: out = Arithmetic::i32; return true;
    case DType::uint8:
    case DType::uint16:
    case DType::uint32: out = Arithmetic::u32; return true;
    case DType::int64: out = Arithmetic::i64; return true;
    case DType::uint64: out = Arithmetic::u64; return true;
    case DType::boolean: out = Arithmetic::boolean; return true;
    default: return false;
  }
}

void CodeWriter::emit(std::vector<uint32_t>& section, uint16_t opcode, std::span<const uint32_t> operands) {
  section.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | opcode);
  section.insert(section.end(), operands.begin(), operands.end());
}
void CodeWriter::emit(std::vector<uint32_t>& section, uint16_t opcode, std::initializer_list<uint32_t> operands) {
  emit(section, opcode, std::span(operands.begin(), operands.size()));
}

void CodeWriter::capability(uint32_t capability) {
  if (std::find(known_capabilities_.begin(), known_capabilities_.end(), capability) != known_capabilities_.end()) return;
  known_capabilities_.push_back(capability);
  emit(capabilities_, spv::OpCapability, {capability});
}

// For an instruction with a result, the operands begin with the id of the result's type and the id of the result.
uint32_t CodeWriter::declare(uint16_t opcode, std::vector<uint32_t> operands, bool has_type) {
  std::vector<uint32_t> key = operands;
  key.push_back(opcode);
  uint32_t& id = declared_[key];
  if (id != 0) return id;
  id = new_id();
  operands.insert(operands.begin() + (has_type ? 1 : 0), id);
  emit(declarations_, opcode, operands);
  return id;
}

uint32_t CodeWriter::type_of(Arithmetic type) {
  switch (type) {
    case Arithmetic::f32: return declare(spv::OpTypeFloat, {32}, false);
    case Arithmetic::f64: capability(spv::CapabilityFloat64); return declare(spv::OpTypeFloat, {64}, false);
    case Arithmetic::i32: return declare(spv::OpTypeInt, {32, 1}, false);
    case Arithmetic::u32: return declare(spv::OpTypeInt, {32, 0}, false);
    case Arithmetic::i64: capability(spv::CapabilityInt64); return declare(spv::OpTypeInt, {64, 1}, false);
    case Arithmetic::u64: capability(spv::CapabilityInt64); return declare(spv::OpTypeInt, {64, 0}, false);
    case Arithmetic::boolean: break;
  }
  return declare(spv::OpTypeBool, {}, false);
}

uint32_t CodeWriter::instruction(uint16_t opcode, uint32_t type, std::initializer_list<uint32_t> operands) {
  const uint32_t id = new_id();
  std::vector<uint32_t> all{type, id};
  all.insert(all.end(), operands.begin(), operands.end());
  emit(code_, opcode, all);
  return id;
}

uint32_t CodeWriter::constant(uint32_t word) { return declare(spv::OpConstant, {type_of(Arithmetic::u32), word}, true); }

Value CodeWriter::bits(uint32_t word, Arithmetic type) { return {declare(spv::OpConstant, {type_of(type), word}, true), type}; }

Value CodeWriter::number(double value, Arithmetic type) {
  uint64_t word = 0;
  switch (type) {
    case Arithmetic::f32: word = std::bit_cast<uint32_t>(static_cast<float>(value)); break;
    case Arithmetic::f64: word = std::bit_cast<uint64_t>(value); break;
    case Arithmetic::i32:
    case Arithmetic::u32: word = static_cast<uint32_t>(static_cast<int64_t>(value)); break;
    case Arithmetic::i64:
    case Arithmetic::u64: word = static_cast<uint64_t>(static_cast<int64_t>(value)); break;
    case Arithmetic::boolean: return {declare(value != 0 ? spv::OpConstantTrue : spv::OpConstantFalse, {type_of(type)}, true), type};
  }
  std::vector<uint32_t> operands{type_of(type), static_cast<uint32_t>(word)};
  if (is_wide(type)) operands.push_back(static_cast<uint32_t>(word >> 32));
  return {declare(spv::OpConstant, operands, true), type};
}

Value CodeWriter::op(uint16_t opcode, Arithmetic type, std::initializer_list<Value> operands) {
  const uint32_t id = new_id();
  std::vector<uint32_t> words{type_of(type), id};
  for (const Value& operand : operands) words.push_back(operand.id);
  emit(code_, opcode, words);
  return {id, type};
}

Value CodeWriter::ext(uint32_t instruction, Arithmetic type, std::initializer_list<Value> operands) {
  const uint32_t id = new_id();
  std::vector<uint32_t> words{type_of(type), id, ext_set_, instruction};
  for (const Value& operand : operands) words.push_back(operand.id);
  emit(code_, spv::OpExtInst, words);
  return {id, type};
}

Value CodeWriter::exact_mul_add(Value a, Value b, Value c) {
  const Value product = mul(a, b), sum = add(product, c);
  for (const Value& value : {product, sum}) emit(decorations_, spv::OpDecorate, {value.id, spv::DecorationNoContraction});
  return sum;
}

Value CodeWriter::select(Value condition, Value yes, Value no) { return op(spv::OpSelect, yes.type, {condition, yes, no}); }

Value CodeWriter::convert(Value value, Arithmetic type) {
  const Arithmetic from = value.type;
  if (from == type) return value;
  if (type == Arithmetic::boolean)
    return is_float_type(from) ? op(spv::OpFUnordNotEqual, type, {value, number(0, from)})
                               : op(spv::OpINotEqual, type, {value, number(0, from)});
  if (from == Arithmetic::boolean) return select(value, number(1, type), number(0, type));
  if (is_float_type(from) && is_float_type(type)) return op(spv::OpFConvert, type, {value});
  if (is_float_type(from)) return op(is_signed_type(type) ? spv::OpConvertFToS : spv::OpConvertFToU, type, {value});
  if (is_float_type(type)) return op(is_signed_type(from) ? spv::OpConvertSToF : spv::OpConvertUToF, type, {value});
  if (is_wide(from) == is_wide(type)) return op(spv::OpBitcast, type, {value});
  // Changes the width before the sign. Widening extends an integer by the sign of its own type.
  const Arithmetic same_sign =
      is_signed_type(from) ? (is_wide(type) ? Arithmetic::i64 : Arithmetic::i32) : (is_wide(type) ? Arithmetic::u64 : Arithmetic::u32);
  const Value resized = op(is_signed_type(from) ? spv::OpSConvert : spv::OpUConvert, same_sign, {value});
  return same_sign == type ? resized : op(spv::OpBitcast, type, {resized});
}

Value CodeWriter::add(Value a, Value b) { return op(is_float_type(a.type) ? spv::OpFAdd : spv::OpIAdd, a.type, {a, b}); }
Value CodeWriter::sub(Value a, Value b) { return op(is_float_type(a.type) ? spv::OpFSub : spv::OpISub, a.type, {a, b}); }
Value CodeWriter::mul(Value a, Value b) { return op(is_float_type(a.type) ? spv::OpFMul : spv::OpIMul, a.type, {a, b}); }
Value CodeWriter::div(Value a, Value b) { return op(spv::OpFDiv, a.type, {a, b}); }
Value CodeWriter::less(Value a, Value b) {
  return op(is_float_type(a.type)    ? spv::OpFOrdLessThan
            : is_signed_type(a.type) ? spv::OpSLessThan
                                     : spv::OpULessThan,
            Arithmetic::boolean, {a, b});
}
Value CodeWriter::less_or_equal(Value a, Value b) {
  return op(is_float_type(a.type)    ? spv::OpFOrdLessThanEqual
            : is_signed_type(a.type) ? spv::OpSLessThanEqual
                                     : spv::OpULessThanEqual,
            Arithmetic::boolean, {a, b});
}
Value CodeWriter::equal(Value a, Value b) {
  return op(is_float_type(a.type)           ? spv::OpFOrdEqual
            : a.type == Arithmetic::boolean ? spv::OpLogicalEqual
                                            : spv::OpIEqual,
            Arithmetic::boolean, {a, b});
}
Value CodeWriter::is_nan(Value a) { return op(spv::OpIsNan, Arithmetic::boolean, {a}); }
Value CodeWriter::logical_not(Value a) { return op(spv::OpLogicalNot, Arithmetic::boolean, {a}); }

// Returns, as a float32, the nearest number that a float16 can represent. For normal numbers, the last bits are rounded away; for subnormal
// float16 numbers, all bits below their unit.
Value CodeWriter::rounded_to_half(Value value) {
  const Value word = op(spv::OpBitcast, Arithmetic::u32, {value});
  auto one = [&](uint32_t w) { return bits(w, Arithmetic::u32); };
  const Value magnitude = op(spv::OpBitwiseAnd, Arithmetic::u32, {word, one(0x7FFFFFFFU)});
  const Value last = op(spv::OpBitwiseAnd, Arithmetic::u32, {op(spv::OpShiftRightLogical, Arithmetic::u32, {word, one(13)}), one(1)});
  const Value up = add(add(word, one(0xFFF)), last);
  const Value normal = op(spv::OpBitcast, Arithmetic::f32, {op(spv::OpBitwiseAnd, Arithmetic::u32, {up, one(0xFFFFE000U)})});
  const Value unit = number(16777216);
  const Value subnormal = div(ext(GLSLstd450RoundEven, Arithmetic::f32, {mul(value, unit)}), unit);
  const Value sign = op(spv::OpBitwiseAnd, Arithmetic::u32, {word, one(0x80000000U)});
  const Value infinite = op(spv::OpBitcast, Arithmetic::f32, {op(spv::OpBitwiseOr, Arithmetic::u32, {sign, one(0x7F800000U)})});
  const Value finite = select(less(magnitude, one(0x38800000U)), subnormal, normal);
  const Value number = select(less(magnitude, one(0x477FF000U)), finite, infinite);  // 65,520 and larger numbers round to infinity
  return select(is_nan(value), value, number);
}

Value CodeWriter::rounded_to_bfloat(Value value) {
  const Value word = op(spv::OpBitcast, Arithmetic::u32, {value});
  const Value last = op(spv::OpBitwiseAnd, Arithmetic::u32,
                        {op(spv::OpShiftRightLogical, Arithmetic::u32, {word, bits(16, Arithmetic::u32)}), bits(1, Arithmetic::u32)});
  const Value up = add(add(word, bits(0x7FFF, Arithmetic::u32)), last);
  const Value kept = op(spv::OpBitwiseAnd, Arithmetic::u32, {up, bits(0xFFFF0000U, Arithmetic::u32)});
  return select(is_nan(value), value, op(spv::OpBitcast, Arithmetic::f32, {kept}));
}

Value CodeWriter::rounded(Value value, DType dtype) {
  if (dtype == DType::float16) return rounded_to_half(value);
  if (dtype == DType::bfloat16) return rounded_to_bfloat(value);
  const auto width = static_cast<uint32_t>(bits_of(dtype));
  if ((value.type != Arithmetic::i32 && value.type != Arithmetic::u32) || width >= 32) return value;
  const Value unused = bits(32 - width, Arithmetic::u32);
  const Value high = op(spv::OpShiftLeftLogical, value.type, {value, unused});
  return op(is_signed_type(value.type) ? spv::OpShiftRightArithmetic : spv::OpShiftRightLogical, value.type, {high, unused});
}

}  // namespace treadle::gpu
