#include "device/vulkan/api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>

#include "core/base/fork_mutex.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::vulkan {
namespace {

constexpr const char* kLibrary = "libvulkan.so.1";

Instance load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw Error(ErrorCode::not_found,
                fmt::format("there is no Vulkan on this machine: {} cannot be loaded ({}); Debian has it in the package "
                            "libvulkan1, and a driver in the GPU's own or in mesa-vulkan-drivers",
                            kLibrary, dlerror()));
  const auto get = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
  const auto create = get ? reinterpret_cast<PFN_vkCreateInstance>(get(nullptr, "vkCreateInstance")) : nullptr;
  if (!create) throw Error(ErrorCode::not_found, fmt::format("{} has no vkCreateInstance", kLibrary));
  VkApplicationInfo application{VK_STRUCTURE_TYPE_APPLICATION_INFO, nullptr, "treadle", 0, "treadle", 0, VK_API_VERSION_1_2};
  VkInstanceCreateInfo info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, nullptr, 0, &application, 0, nullptr, 0, nullptr};
  Instance instance;
  const VkResult made = create(&info, nullptr, &instance.handle);
  if (made == VK_ERROR_INCOMPATIBLE_DRIVER)
    throw Error(ErrorCode::not_found,
                "there is no Vulkan driver on this machine: a GPU's own brings it, or the package mesa-vulkan-drivers");
  check(made, "Vulkan", "make an instance");
#define TREADLE_VULKAN_FIND(name)                                                   \
  instance.name = reinterpret_cast<PFN_vk##name>(get(instance.handle, "vk" #name)); \
  if (!instance.name) throw Error(ErrorCode::not_found, "Vulkan's loader has no function vk" #name);
  TREADLE_VULKAN_INSTANCE_FUNCTIONS(TREADLE_VULKAN_FIND)
#undef TREADLE_VULKAN_FIND
  return instance;
}

const char* name_of(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_INITIALIZATION_FAILED: return "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
    case VK_ERROR_EXTENSION_NOT_PRESENT: return "VK_ERROR_EXTENSION_NOT_PRESENT";
    case VK_ERROR_FEATURE_NOT_PRESENT: return "VK_ERROR_FEATURE_NOT_PRESENT";
    case VK_ERROR_TOO_MANY_OBJECTS: return "VK_ERROR_TOO_MANY_OBJECTS";
    case VK_TIMEOUT: return "VK_TIMEOUT";
    default: return nullptr;
  }
}

}  // namespace

const Instance& Instance::get() {
  // If load() throws, this variable stays uninitialized. The next call then calls load() again, which throws the same error.
  static const std::pair<Instance, uint32_t> loaded = {load(), fork_generation()};
  if (loaded.second != fork_generation())
    throw Error(ErrorCode::not_implemented,
                "this process was forked from one that uses Vulkan, whose drivers do not work in both; start processes that use GPUs "
                "anew (Python: multiprocessing's method spawn), or fork before the first use of a GPU");
  return loaded.first;
}

void check(VkResult result, std::string_view device, std::string_view what) {
  if (result == VK_SUCCESS) return;
  const char* const name = name_of(result);
  const std::string text =
      fmt::format("{} failed to {}: {}", device, what, name ? name : fmt::format("VkResult {}", static_cast<int>(result)));
  if (result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY) throw OutOfMemory(text);
  if (result == VK_ERROR_DEVICE_LOST)
    throw Error(ErrorCode::io_error,
                text +
                    ". The driver has given the device up, after a fault or a time limit of its own; what was there is lost. Sessions "
                    "that are made from now on open it anew");
  throw Error(ErrorCode::internal, text);
}

}  // namespace treadle::vulkan
