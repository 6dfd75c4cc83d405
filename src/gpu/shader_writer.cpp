#include "gpu/shader_writer.h"

#include <algorithm>
#include <spirv/unified1/spirv.hpp>
#include <utility>

namespace treadle::gpu {
namespace {

constexpr uint32_t kVersion = 0x00010300;  // SPIR-V 1.3, which every Vulkan 1.2 driver supports
constexpr uint32_t kGlsl450 = 0;

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

// Declares a pointer to a block with an array of elements. Returns the id of the pointer's type.
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

ShaderWriter::ShaderWriter(std::span<const DType> inputs, DType output, int rank, bool output_is_strided, Inputs layout)
    : inputs_(inputs.begin(), inputs.end()), output_(output), rank_(rank), output_is_strided_(output_is_strided), layout_(layout) {
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
  members.push_back(u32);                                          // the number of elements
  for (int axis = 1; axis < rank; ++axis) members.push_back(u32);  // the extents
  first_place_ = members.size();
  if (layout_ == Inputs::broadcast) {
    members.insert(members.end(), (inputs_.size() + 3) / 4, u32);
  } else {
    for (size_t k = output_is_strided ? 0 : 1; k < num_pointers; ++k)
      for (int axis = 0; axis < rank; ++axis) members.push_back(i32);
  }
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

// Loads a push constant.
uint32_t ShaderWriter::push(size_t member) {
  const size_t num_pointers = inputs_.size() + 1;
  const bool is_stride = member >= first_place_ && layout_ == Inputs::strided;
  const uint32_t type = member == 0             ? pointer_to_elements(output_)
                        : member < num_pointers ? pointer_to_elements(inputs_[member - 1])
                                                : type_of(is_stride ? Arithmetic::i32 : Arithmetic::u32);
  const uint32_t to = declare(spv::OpTypePointer, {spv::StorageClassPushConstant, type}, false);
  return instruction(spv::OpLoad, type, {instruction(spv::OpAccessChain, to, {push_variable_, constant(static_cast<uint32_t>(member))})});
}

// Computes the index of the element that the invocation is for. Invocations without an element return.
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

uint32_t ShaderWriter::strided_place(size_t operand) {
  const uint32_t i32 = type_of(Arithmetic::i32);
  const size_t strides = first_place_ + (operand - (output_is_strided_ ? 0 : 1)) * static_cast<size_t>(rank_);
  uint32_t at = 0;
  for (size_t axis = 0; axis < position_.size(); ++axis) {
    const uint32_t step = instruction(spv::OpIMul, i32, {position_[axis], push(strides + axis)});
    at = axis == 0 ? step : instruction(spv::OpIAdd, i32, {at, step});
  }
  return at;
}

// Returns the index of an element in a broadcast operand. The stride of a dimension is the product of the operand's extents in later
// dimensions.
uint32_t ShaderWriter::broadcast_place(size_t input) {
  const uint32_t i32 = type_of(Arithmetic::i32), u32 = type_of(Arithmetic::u32), boolean = type_of(Arithmetic::boolean);
  const uint32_t mask = push(first_place_ + input / 4), zero = bits(0, Arithmetic::i32).id;
  uint32_t at = zero, stride = bits(1, Arithmetic::i32).id;
  for (size_t axis = position_.size(); axis-- > 0;) {
    const auto bit = static_cast<uint32_t>(input % 4 * 8 + axis);
    const uint32_t extends =
        instruction(spv::OpINotEqual, boolean, {instruction(spv::OpBitwiseAnd, u32, {mask, constant(1U << bit)}), constant(0)});
    const uint32_t step = instruction(spv::OpIMul, i32, {position_[axis], stride});
    at = instruction(spv::OpIAdd, i32, {at, instruction(spv::OpSelect, i32, {extends, step, zero})});
    if (axis == 0) break;
    const uint32_t extent = instruction(spv::OpBitcast, i32, {push(inputs_.size() + 1 + axis)});
    stride = instruction(spv::OpSelect, i32, {extends, instruction(spv::OpIMul, i32, {stride, extent}), stride});
  }
  return at;
}

// Returns a pointer to the invocation's element of an operand. Operand 0 is the output; the inputs follow.
uint32_t ShaderWriter::element_pointer(size_t operand, DType dtype) {
  const uint32_t at = operand == 0 && !output_is_strided_           ? index_
                      : operand > 0 && layout_ == Inputs::broadcast ? broadcast_place(operand - 1)
                                                                    : strided_place(operand);
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
    case DType::bfloat16: {  // rounds to nearest, ties to even; a NaN stays a NaN
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

}  // namespace treadle::gpu
