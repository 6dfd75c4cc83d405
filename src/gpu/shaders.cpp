#include "gpu/shaders.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "gpu_shaders.h"

namespace treadle::gpu {
namespace {

struct Code {
  std::string_view name;
  std::span<const uint32_t> words;
};
const Code kShaders[] = {
#include "gpu_shader_rows.inc"
};

std::span<const uint32_t> find_words(const std::string& name) {
  const auto* found = std::find_if(std::begin(kShaders), std::end(kShaders), [&](const Code& code) { return code.name == name; });
  return found == std::end(kShaders) ? std::span<const uint32_t>() : found->words;
}

const vulkan::Shader* find(const std::string& name, std::span<const uint32_t> constants) {
  const std::span<const uint32_t> words = find_words(name);
  return words.empty() ? nullptr : &vulkan::Shader::of(words, constants, name);
}

}  // namespace

const vulkan::Shader* find_shader(const std::string& file, DType dtype, std::span<const uint32_t> constants) {
  return find(fmt::format("{}_{}", file, short_name_of(dtype)), constants);
}

std::span<const uint32_t> find_code(const std::string& file, DType dtype) {
  return find_words(fmt::format("{}_{}", file, short_name_of(dtype)));
}

const vulkan::Shader* find_moving_shader(const std::string& file, size_t word_bytes, std::span<const uint32_t> constants) {
  return find(fmt::format("{}_b{}", file, word_bytes), constants);
}

}  // namespace treadle::gpu
