// Converts elements between dtypes, for kernels that compute in one dtype only.
#include <map>
#include <mutex>

#include "gpu/launch.h"
#include "gpu/shader_writer.h"

namespace treadle::gpu {
namespace {

const vulkan::Shader& conversion_shader(DType from, DType to) {
  static std::mutex mutex;
  static std::map<std::pair<DType, DType>, const vulkan::Shader*> made;
  std::lock_guard lock(mutex);
  const vulkan::Shader*& shader = made[{from, to}];
  if (!shader) {
    ShaderWriter writer(std::span(&from, 1), to, 1, false);
    Arithmetic result{};
    arithmetic_of(to, result);
    writer.store(writer.convert(writer.load(0), result));
    shader = &vulkan::Shader::of(writer.finish(), {}, "convert");
  }
  return *shader;
}

}  // namespace

const void* convert_elements(DType from, const void* src, DType to, void* dst, int64_t count) {
  if (from == to) return src;
  Push push;
  push.pointer(dst).pointer(src).word(count32(count)).word(int32_t{1});
  stream().dispatch(conversion_shader(from, to), push.bytes(), groups_over(count32(count)));
  return dst;
}

}  // namespace treadle::gpu
