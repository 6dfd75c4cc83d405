#include "gpu/epilogue_writer.h"

#include <spirv/unified1/spirv.hpp>
#include <string_view>

#include "treadle/error.h"

namespace treadle::gpu {
namespace {

constexpr size_t kHeaderWords = 5, kBound = 3;  // kBound: index of the word that is larger than all ids

uint32_t opcode_at(std::span<const uint32_t> shader, size_t at) { return shader[at] & 0xFFFFU; }
size_t length_at(std::span<const uint32_t> shader, size_t at) { return shader[at] >> 16; }

bool is_declaration(uint32_t opcode) {
  return (opcode >= spv::OpTypeVoid && opcode <= spv::OpTypeForwardPointer) || opcode == spv::OpConstant || opcode == spv::OpConstantTrue ||
         opcode == spv::OpConstantFalse || opcode == spv::OpSpecConstant;
}

}  // namespace

EpilogueWriter::EpilogueWriter(std::span<const uint32_t> shader) : shader_(shader) {
  next_id_ = shader_[kBound];
  for (size_t at = kHeaderWords; at < shader_.size(); at += length_at(shader_, at)) read(at);
  if (body_end_ == 0) throw Error(ErrorCode::internal, "a shader without the function epilogue");
}

void EpilogueWriter::read(size_t at) {
  const uint32_t opcode = opcode_at(shader_, at);
  const std::span<const uint32_t> words = shader_.subspan(at, length_at(shader_, at));
  if (opcode == spv::OpCapability) {
    known_capabilities_.push_back(words[1]);
    capabilities_end_ = at + words.size();
  } else if (opcode == spv::OpExtInstImport) {
    ext_set_ = words[1];
  } else if (opcode == spv::OpName) {
    // In a compiled shader, the types of the arguments follow the function's name.
    const std::string_view name(reinterpret_cast<const char*>(words.data() + 2));
    if (name.starts_with("epilogue(")) function_ = words[1];
  } else if (opcode == spv::OpFunction) {
    if (functions_ == 0) functions_ = at;
    is_inside_ = words[2] == function_;
  } else if (is_inside_ && opcode == spv::OpFunctionParameter) {
    arguments_.push_back(words[2]);
  } else if (is_inside_ && opcode == spv::OpLabel && body_ == 0) {
    body_ = at + words.size();
  } else if (is_inside_ && opcode == spv::OpFunctionEnd) {
    body_end_ = at;
    is_inside_ = false;
  } else if (functions_ == 0 && is_declaration(opcode)) {
    if (types_ == 0) types_ = at;
    remember(at);
  }
}

// A type or constant must not be declared twice. So the inserted code uses the shader's own declarations, which are remembered here.
void EpilogueWriter::remember(size_t at) {
  const uint32_t opcode = opcode_at(shader_, at);
  const std::span<const uint32_t> words = shader_.subspan(at, length_at(shader_, at));
  const bool has_type = opcode == spv::OpConstant || opcode == spv::OpConstantTrue || opcode == spv::OpConstantFalse;
  if (!has_type && opcode != spv::OpTypeFloat && opcode != spv::OpTypeInt && opcode != spv::OpTypeBool) return;
  std::vector<uint32_t> key;
  if (has_type) key.push_back(words[1]);
  const size_t id = has_type ? 2 : 1;
  key.insert(key.end(), words.begin() + static_cast<ptrdiff_t>(id) + 1, words.end());
  key.push_back(opcode);
  declared_.emplace(std::move(key), words[id]);
}

Value EpilogueWriter::argument(size_t index) {
  return {instruction(spv::OpLoad, type_of(Arithmetic::f32), {arguments_.at(index)}), Arithmetic::f32};
}

std::vector<uint32_t> EpilogueWriter::finish(Value result) {
  emit(code_, spv::OpReturnValue, {result.id});
  std::vector<uint32_t> words;
  auto copy = [&](size_t begin, size_t end) {
    words.insert(words.end(), shader_.begin() + static_cast<ptrdiff_t>(begin), shader_.begin() + static_cast<ptrdiff_t>(end));
  };
  auto append = [&](const std::vector<uint32_t>& section) { words.insert(words.end(), section.begin(), section.end()); };
  copy(0, capabilities_end_), append(capabilities_);
  copy(capabilities_end_, types_), append(decorations_);
  copy(types_, functions_), append(declarations_);
  copy(functions_, body_), append(code_);
  copy(body_end_, shader_.size());
  words[kBound] = next_id_;
  return words;
}

}  // namespace treadle::gpu
