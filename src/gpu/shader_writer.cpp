#include "gpu/shader_writer.h"

#include <algorithm>
#include <bit>
#include <spirv/unified1/spirv.hpp>

#include "treadle/error.h"

namespace treadle::gpu {
namespace {

constexpr uint32_t kVersion = 0x00010300;  // SPIR-V 1.3, as Vulkan 1.2 requires at least
constexpr uint32_t kGlsl450 = 0;

bool is_float_type(Arithmetic type) { return type == Arithmetic::f32 || type == Arithmetic::f64; }
bool is_signed_type(Arithmetic type) { return type == Arithmetic::i32 || type == Arithmetic::i64; }
bool is_wide(Arithmetic type) { return type == Arithmetic::f64 || type == Arithmetic::i64 || type == Arithmetic::u64; }

std::vector<uint32_t> words_of(const char* text) {
  std::vector<uint32_t> words;
  uint32_t word = 0;
  size_t i = 0;
  do {
    word |= static_cast<uint32_t>(static_cast<uint8_t>(text[i])) << (i % 4 * 8);
    if (i % 4 == 3) words.push_back(std::exchange(word, 0));
  } while (text[i++] != 0);
  if (i % 4 != 0) words.push_back(word);
  return words;
}

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

void ShaderWriter::emit(std::vector<uint32_t>& section, uint16_t opcode, std::span<const uint32_t> operands) {
  section.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | opcode);
  section.insert(section.end(), operands.begin(), operands.end());
}
void ShaderWriter::emit(std::vector<uint32_t>& section, uint16_t opcode, std::initializer_list<uint32_t> operands) {
  emit(section, opcode, std::span(operands.begin(), operands.size()));
}

void ShaderWriter::capability(uint32_t capability) {
  if (std::find(known_capabilities_.begin(), known_capabilities_.end(), capability) != known_capabilities_.end()) return;
  known_capabilities_.push_back(capability);
  emit(capabilities_, spv::OpCapability, {capability});
}

// The result id follows the opcode, or if there is a result type (the first operand), the type.
uint32_t ShaderWriter::declare(uint16_t opcode, std::vector<uint32_t> operands, bool has_type) {
  std::vector<uint32_t> key = operands;
  key.push_back(opcode);
  uint32_t& id = declared_[key];
  if (id != 0) return id;
  id = new_id();
  operands.insert(operands.begin() + (has_type ? 1 : 0), id);
  emit(declarations_, opcode, operands);
  return id;
}

uint32_t ShaderWriter::type_of(Arithmetic type) {
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

uint32_t ShaderWriter::element_type(DType dtype) {
  switch (dtype) {
    case DType::float16: capability(spv::CapabilityStorageBuffer16BitAccess); return declare(spv::OpTypeFloat, {16}, false);
    case DType::bfloat16:
    case DType::uint16: capability(spv::CapabilityStorageBuffer16BitAccess); return declare(spv::OpTypeInt, {16, 0}, false);
    case DType::int16: capability(spv::CapabilityStorageBuffer16BitAccess); return declare(spv::OpTypeInt, {16, 1}, false);
    case DType::boolean:
    case DType::uint8: capability(spv::CapabilityStorageBuffer8BitAccess); return declare(spv::OpTypeInt, {8, 0}, false);
    case DType::int8: capability(spv::CapabilityStorageBuffer8BitAccess); return declare(spv::OpTypeInt, {8, 1}, false);
    default: {
      Arithmetic type{};
      arithmetic_of(dtype, type);
      return type_of(type);
    }
  }
}

// Declares a pointer to a block that contains an array of elements.
uint32_t ShaderWriter::pointer_to_elements(DType dtype) {
  const uint32_t element = element_type(dtype);
  const size_t known = declared_.size();
  const uint32_t array = declare(spv::OpTypeRuntimeArray, {element}, false);
  const bool is_new = declared_.size() != known;
  const uint32_t block = declare(spv::OpTypeStruct, {array}, false);
  if (is_new) {
    emit(decorations_, spv::OpDecorate, {array, spv::DecorationArrayStride, static_cast<uint32_t>(bits_of(dtype) / 8)});
    emit(decorations_, spv::OpMemberDecorate, {block, 0, spv::DecorationOffset, 0});
    emit(decorations_, spv::OpDecorate, {block, spv::DecorationBlock});
  }
  return declare(spv::OpTypePointer, {spv::StorageClassPhysicalStorageBuffer, block}, false);
}

ShaderWriter::ShaderWriter(std::span<const DType> inputs, DType output, int rank, bool output_is_strided, int num_parameters)
    : inputs_(inputs.begin(), inputs.end()), output_(output), rank_(rank), output_is_strided_(output_is_strided) {
  capability(spv::CapabilityShader);
  capability(spv::CapabilityPhysicalStorageBufferAddresses);
  ext_set_ = new_id();
  main_ = new_id();
  push_variable_ = new_id();
  group_id_ = new_id();
  local_index_ = new_id();

  const uint32_t u32 = type_of(Arithmetic::u32), i32 = type_of(Arithmetic::i32);
  std::vector<uint32_t> members{pointer_to_elements(output)};
  for (const DType dtype : inputs_) members.push_back(pointer_to_elements(dtype));
  const size_t num_pointers = members.size();
  members.push_back(u32);                                          // number of elements
  for (int axis = 1; axis < rank; ++axis) members.push_back(u32);  // extents
  first_stride_ = members.size();
  for (size_t k = output_is_strided ? 0 : 1; k < num_pointers; ++k)
    for (int axis = 0; axis < rank; ++axis) members.push_back(i32);
  first_parameter_ = members.size();
  if (num_parameters > 0) members.insert(members.end(), static_cast<size_t>(num_parameters), type_of(Arithmetic::f32));
  const uint32_t block = new_id();
  std::vector<uint32_t> operands{block};
  operands.insert(operands.end(), members.begin(), members.end());
  emit(declarations_, spv::OpTypeStruct, operands);
  emit(decorations_, spv::OpDecorate, {block, spv::DecorationBlock});
  uint32_t offset = 0;
  for (size_t m = 0; m < members.size(); ++m) {
    emit(decorations_, spv::OpMemberDecorate, {block, static_cast<uint32_t>(m), spv::DecorationOffset, offset});
    offset += m < num_pointers ? 8 : 4;
  }
  const uint32_t pointer = declare(spv::OpTypePointer, {spv::StorageClassPushConstant, block}, false);
  emit(declarations_, spv::OpVariable, {pointer, push_variable_, spv::StorageClassPushConstant});

  const uint32_t vector = declare(spv::OpTypeVector, {u32, 3}, false);
  const uint32_t to_vector = declare(spv::OpTypePointer, {spv::StorageClassInput, vector}, false);
  const uint32_t to_u32 = declare(spv::OpTypePointer, {spv::StorageClassInput, u32}, false);
  emit(declarations_, spv::OpVariable, {to_vector, group_id_, spv::StorageClassInput});
  emit(declarations_, spv::OpVariable, {to_u32, local_index_, spv::StorageClassInput});
  emit(decorations_, spv::OpDecorate, {group_id_, spv::DecorationBuiltIn, spv::BuiltInWorkgroupId});
  emit(decorations_, spv::OpDecorate, {local_index_, spv::DecorationBuiltIn, spv::BuiltInLocalInvocationIndex});

  const uint32_t nothing = declare(spv::OpTypeVoid, {}, false);
  const uint32_t function = declare(spv::OpTypeFunction, {nothing}, false);
  emit(code_, spv::OpFunction, {nothing, main_, 0, function});
  emit(code_, spv::OpLabel, {new_id()});
  write_index();
}

uint32_t ShaderWriter::instruction(uint16_t opcode, uint32_t type, std::initializer_list<uint32_t> operands) {
  const uint32_t id = new_id();
  std::vector<uint32_t> all{type, id};
  all.insert(all.end(), operands.begin(), operands.end());
  emit(code_, opcode, all);
  return id;
}

uint32_t ShaderWriter::constant(uint32_t word) { return declare(spv::OpConstant, {type_of(Arithmetic::u32), word}, true); }

// Reads a member of the push constants.
uint32_t ShaderWriter::push(size_t member) {
  const size_t num_pointers = inputs_.size() + 1;
  const uint32_t type = member == 0                 ? pointer_to_elements(output_)
                        : member < num_pointers     ? pointer_to_elements(inputs_[member - 1])
                        : member < first_stride_    ? type_of(Arithmetic::u32)
                        : member < first_parameter_ ? type_of(Arithmetic::i32)
                                                    : type_of(Arithmetic::f32);
  const uint32_t to = declare(spv::OpTypePointer, {spv::StorageClassPushConstant, type}, false);
  return instruction(spv::OpLoad, type, {instruction(spv::OpAccessChain, to, {push_variable_, constant(static_cast<uint32_t>(member))})});
}

Value ShaderWriter::parameter(size_t index) { return {push(first_parameter_ + index), Arithmetic::f32}; }

// Finds the invocation's element, and leaves the invocations without one.
void ShaderWriter::write_index() {
  const uint32_t u32 = type_of(Arithmetic::u32), i32 = type_of(Arithmetic::i32);
  const uint32_t group = instruction(spv::OpLoad, declare(spv::OpTypeVector, {u32, 3}, false), {group_id_});
  const uint32_t x = instruction(spv::OpCompositeExtract, u32, {group, 0}), y = instruction(spv::OpCompositeExtract, u32, {group, 1});
  const uint32_t row = instruction(spv::OpIMul, u32, {y, constant(kGroupsInRow)});
  const uint32_t first = instruction(spv::OpIMul, u32, {instruction(spv::OpIAdd, u32, {row, x}), constant(kGroupSize)});
  index_ = instruction(spv::OpIAdd, u32, {first, instruction(spv::OpLoad, u32, {local_index_})});

  const size_t num_pointers = inputs_.size() + 1;
  const uint32_t inside = instruction(spv::OpULessThan, type_of(Arithmetic::boolean), {index_, push(num_pointers)});
  const uint32_t body = new_id();
  merge_label_ = new_id();
  emit(code_, spv::OpSelectionMerge, {merge_label_, 0});
  emit(code_, spv::OpBranchConditional, {inside, body, merge_label_});
  emit(code_, spv::OpLabel, {body});

  position_.resize(static_cast<size_t>(rank_));
  uint32_t rest = index_;
  for (int axis = rank_ - 1; axis > 0; --axis) {
    const uint32_t extent = push(num_pointers + static_cast<size_t>(axis));
    position_[static_cast<size_t>(axis)] = instruction(spv::OpBitcast, i32, {instruction(spv::OpUMod, u32, {rest, extent})});
    rest = instruction(spv::OpUDiv, u32, {rest, extent});
  }
  position_[0] = instruction(spv::OpBitcast, i32, {rest});
}

// Operand 0 is the output.
uint32_t ShaderWriter::element_pointer(size_t operand, DType dtype) {
  const uint32_t i32 = type_of(Arithmetic::i32);
  uint32_t at = 0;
  if (operand == 0 && !output_is_strided_) {
    at = index_;
  } else {
    const size_t strides = first_stride_ + (operand - (output_is_strided_ ? 0 : 1)) * static_cast<size_t>(rank_);
    for (size_t axis = 0; axis < position_.size(); ++axis) {
      const uint32_t step = instruction(spv::OpIMul, i32, {position_[axis], push(strides + axis)});
      at = axis == 0 ? step : instruction(spv::OpIAdd, i32, {at, step});
    }
  }
  const uint32_t pointer = declare(spv::OpTypePointer, {spv::StorageClassPhysicalStorageBuffer, element_type(dtype)}, false);
  return instruction(spv::OpAccessChain, pointer, {push(operand), constant(0), at});
}

Value ShaderWriter::load(size_t input) {
  const DType dtype = inputs_[input];
  const auto size = static_cast<uint32_t>(bits_of(dtype) / 8);
  const uint32_t raw =
      instruction(spv::OpLoad, element_type(dtype), {element_pointer(input + 1, dtype), spv::MemoryAccessAlignedMask, size});
  Arithmetic type{};
  arithmetic_of(dtype, type);
  const uint32_t wide = type_of(type == Arithmetic::boolean || dtype == DType::bfloat16 ? Arithmetic::u32 : type);
  switch (dtype) {
    case DType::float16: return {instruction(spv::OpFConvert, wide, {raw}), type};
    case DType::bfloat16: {
      const uint32_t shifted = instruction(spv::OpShiftLeftLogical, wide, {instruction(spv::OpUConvert, wide, {raw}), constant(16)});
      return {instruction(spv::OpBitcast, type_of(Arithmetic::f32), {shifted}), type};
    }
    case DType::boolean: return convert({instruction(spv::OpUConvert, wide, {raw}), Arithmetic::u32}, Arithmetic::boolean);
    case DType::uint8:
    case DType::uint16: return {instruction(spv::OpUConvert, wide, {raw}), type};
    case DType::int8:
    case DType::int16: return {instruction(spv::OpSConvert, wide, {raw}), type};
    default: return {raw, type};
  }
}

void ShaderWriter::store(Value value) {
  const uint32_t narrow = element_type(output_);
  uint32_t raw = value.id;
  switch (output_) {
    case DType::float16:
      raw = instruction(spv::OpFConvert, narrow, {raw});
      emit(decorations_, spv::OpDecorate, {raw, spv::DecorationFPRoundingMode, spv::FPRoundingModeRTE});
      break;
    case DType::bfloat16: {  // to the nearest, ties to even; a NaN stays one
      const Value word{instruction(spv::OpBitcast, type_of(Arithmetic::u32), {raw}), Arithmetic::u32};
      const Value sixteen = bits(16, Arithmetic::u32);
      const Value last = op(spv::OpBitwiseAnd, Arithmetic::u32,
                            {op(spv::OpShiftRightLogical, Arithmetic::u32, {word, sixteen}), bits(1, Arithmetic::u32)});
      const Value rounded = add(add(word, bits(0x7FFF, Arithmetic::u32)), last);
      const Value quiet = op(spv::OpBitwiseOr, Arithmetic::u32, {word, bits(0x400000, Arithmetic::u32)});
      const Value chosen = select(is_nan(value), quiet, rounded);
      raw = instruction(spv::OpUConvert, narrow, {op(spv::OpShiftRightLogical, Arithmetic::u32, {chosen, sixteen}).id});
      break;
    }
    case DType::boolean: raw = instruction(spv::OpUConvert, narrow, {convert(value, Arithmetic::u32).id}); break;
    case DType::uint8:
    case DType::uint16: raw = instruction(spv::OpUConvert, narrow, {raw}); break;
    case DType::int8:
    case DType::int16: raw = instruction(spv::OpSConvert, narrow, {raw}); break;
    default: break;
  }
  emit(code_, spv::OpStore, {element_pointer(0, output_), raw, spv::MemoryAccessAlignedMask, static_cast<uint32_t>(bits_of(output_) / 8)});
}

std::vector<uint32_t> ShaderWriter::finish() {
  emit(code_, spv::OpBranch, {merge_label_});
  emit(code_, spv::OpLabel, {merge_label_});
  code_.push_back(1U << 16 | spv::OpReturn);
  code_.push_back(1U << 16 | spv::OpFunctionEnd);

  std::vector<uint32_t> words{spv::MagicNumber, kVersion, kGlsl450, next_id_, 0};
  auto append = [&](const std::vector<uint32_t>& section) { words.insert(words.end(), section.begin(), section.end()); };
  append(capabilities_);
  for (const char* name : {"SPV_KHR_physical_storage_buffer", "SPV_KHR_8bit_storage"}) emit(words, spv::OpExtension, words_of(name));
  std::vector<uint32_t> import{ext_set_};
  for (uint32_t word : words_of("GLSL.std.450")) import.push_back(word);
  emit(words, spv::OpExtInstImport, import);
  emit(words, spv::OpMemoryModel, {spv::AddressingModelPhysicalStorageBuffer64, spv::MemoryModelGLSL450});
  std::vector<uint32_t> entry{spv::ExecutionModelGLCompute, main_};
  for (uint32_t word : words_of("main")) entry.push_back(word);
  entry.push_back(group_id_);
  entry.push_back(local_index_);
  emit(words, spv::OpEntryPoint, entry);
  emit(words, spv::OpExecutionMode, {main_, spv::ExecutionModeLocalSize, kGroupSize, 1, 1});
  append(decorations_);
  append(declarations_);
  append(code_);
  return words;
}

Value ShaderWriter::bits(uint32_t word, Arithmetic type) { return {declare(spv::OpConstant, {type_of(type), word}, true), type}; }

Value ShaderWriter::number(double value, Arithmetic type) {
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

Value ShaderWriter::op(uint16_t opcode, Arithmetic type, std::initializer_list<Value> operands) {
  const uint32_t id = new_id();
  std::vector<uint32_t> words{type_of(type), id};
  for (const Value& operand : operands) words.push_back(operand.id);
  emit(code_, opcode, words);
  return {id, type};
}

Value ShaderWriter::ext(uint32_t instruction, Arithmetic type, std::initializer_list<Value> operands) {
  const uint32_t id = new_id();
  std::vector<uint32_t> words{type_of(type), id, ext_set_, instruction};
  for (const Value& operand : operands) words.push_back(operand.id);
  emit(code_, spv::OpExtInst, words);
  return {id, type};
}

Value ShaderWriter::exact_mul_add(Value a, Value b, Value c) {
  const Value product = mul(a, b), sum = add(product, c);
  for (const Value& value : {product, sum}) emit(decorations_, spv::OpDecorate, {value.id, spv::DecorationNoContraction});
  return sum;
}

Value ShaderWriter::select(Value condition, Value yes, Value no) { return op(spv::OpSelect, yes.type, {condition, yes, no}); }

Value ShaderWriter::convert(Value value, Arithmetic type) {
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
  // The width changes first, by the sign of what there is.
  const Arithmetic same_sign =
      is_signed_type(from) ? (is_wide(type) ? Arithmetic::i64 : Arithmetic::i32) : (is_wide(type) ? Arithmetic::u64 : Arithmetic::u32);
  const Value resized = op(is_signed_type(from) ? spv::OpSConvert : spv::OpUConvert, same_sign, {value});
  return same_sign == type ? resized : op(spv::OpBitcast, type, {resized});
}

Value ShaderWriter::add(Value a, Value b) { return op(is_float_type(a.type) ? spv::OpFAdd : spv::OpIAdd, a.type, {a, b}); }
Value ShaderWriter::sub(Value a, Value b) { return op(is_float_type(a.type) ? spv::OpFSub : spv::OpISub, a.type, {a, b}); }
Value ShaderWriter::mul(Value a, Value b) { return op(is_float_type(a.type) ? spv::OpFMul : spv::OpIMul, a.type, {a, b}); }
Value ShaderWriter::div(Value a, Value b) { return op(spv::OpFDiv, a.type, {a, b}); }
Value ShaderWriter::less(Value a, Value b) {
  return op(is_float_type(a.type)    ? spv::OpFOrdLessThan
            : is_signed_type(a.type) ? spv::OpSLessThan
                                     : spv::OpULessThan,
            Arithmetic::boolean, {a, b});
}
Value ShaderWriter::less_or_equal(Value a, Value b) {
  return op(is_float_type(a.type)    ? spv::OpFOrdLessThanEqual
            : is_signed_type(a.type) ? spv::OpSLessThanEqual
                                     : spv::OpULessThanEqual,
            Arithmetic::boolean, {a, b});
}
Value ShaderWriter::equal(Value a, Value b) {
  return op(is_float_type(a.type)           ? spv::OpFOrdEqual
            : a.type == Arithmetic::boolean ? spv::OpLogicalEqual
                                            : spv::OpIEqual,
            Arithmetic::boolean, {a, b});
}
Value ShaderWriter::is_nan(Value a) { return op(spv::OpIsNan, Arithmetic::boolean, {a}); }
Value ShaderWriter::logical_not(Value a) { return op(spv::OpLogicalNot, Arithmetic::boolean, {a}); }

}  // namespace treadle::gpu
