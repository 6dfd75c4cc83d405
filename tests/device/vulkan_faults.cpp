// A layer of Vulkan that makes a driver lack features or fail, as TREADLE_TEST_FAULT says. tests/python/test_gpu_faults.py builds it.
//   features          no feature that Treadle cannot do without
//   16bit             no 16-bit elements in memory
//   stamps            queues stamp no times
//   calibration       the driver does not compare its clock with the host's
//   memory:N          allocations after the first N fail
//   discrete:N        the device has N bytes of memory of its own, apart from the host's
//   lost:N            the device is lost with the Nth submission
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

PFN_vkGetInstanceProcAddr next_instance = nullptr;
PFN_vkGetDeviceProcAddr next_device = nullptr;
VkInstance the_instance = VK_NULL_HANDLE;
// The functions of the next layer or driver. They are looked up while the instance is made, because afterwards the loader returns functions
// of the whole chain, including this layer.
PFN_vkGetPhysicalDeviceFeatures2 next_features = nullptr;
PFN_vkGetPhysicalDeviceQueueFamilyProperties next_families = nullptr;
PFN_vkEnumerateDeviceExtensionProperties next_extensions = nullptr;
PFN_vkGetPhysicalDeviceMemoryProperties2 next_memory = nullptr;
std::atomic<int> calls{0};

bool is_on(const char* fault) {
  const char* wanted = std::getenv("TREADLE_TEST_FAULT");
  return wanted && std::string(wanted) == fault;
}

// Returns true from the Nth call on (`for_ever`), or only for the Nth call.
bool comes_now(const std::string& fault, bool for_ever) {
  const char* wanted = std::getenv("TREADLE_TEST_FAULT");
  if (!wanted || std::string(wanted).rfind(fault + ":", 0) != 0) return false;
  const int number = ++calls, n = std::atoi(wanted + fault.size() + 1);
  return for_ever ? number > n : number == n;
}

template <typename Function>
Function of_instance(const char* name) {
  return reinterpret_cast<Function>(next_instance(the_instance, name));
}

VKAPI_ATTR void VKAPI_CALL features(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* found) {
  next_features(device, found);
  for (auto* next = static_cast<VkBaseOutStructure*>(found->pNext); next; next = next->pNext) {
    if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES && is_on("features"))
      reinterpret_cast<VkPhysicalDeviceVulkan12Features*>(next)->bufferDeviceAddress = VK_FALSE;
    if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES && is_on("16bit"))
      reinterpret_cast<VkPhysicalDeviceVulkan11Features*>(next)->storageBuffer16BitAccess = VK_FALSE;
  }
}

VKAPI_ATTR void VKAPI_CALL families(VkPhysicalDevice device, uint32_t* count, VkQueueFamilyProperties* found) {
  next_families(device, count, found);
  for (uint32_t i = 0; found && i < *count && is_on("stamps"); ++i) found[i].timestampValidBits = 0;
}

VKAPI_ATTR VkResult VKAPI_CALL extensions(VkPhysicalDevice device, const char* layer, uint32_t* count, VkExtensionProperties* found) {
  const VkResult result = next_extensions(device, layer, count, found);
  for (uint32_t i = 0; found && i < *count && is_on("calibration"); ++i)
    if (std::strcmp(found[i].extensionName, VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME) == 0) found[i].extensionName[0] = '-';
  return result;
}

// The device's own memory with "discrete": its size (0: there is none), what is allocated, and by allocation.
VkDeviceSize own_bytes() {
  const char* wanted = std::getenv("TREADLE_TEST_FAULT");
  return wanted && std::strncmp(wanted, "discrete:", 9) == 0 ? std::strtoull(wanted + 9, nullptr, 10) : 0;
}
std::mutex mutex;
VkDeviceSize allocated = 0, most_allocated = 0;
std::map<VkDeviceMemory, VkDeviceSize> allocations;

// Type 0 is the device's, type 1 the host's. The driver below has one type, which is both.
VKAPI_ATTR void VKAPI_CALL memory_properties(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2* found) {
  next_memory(device, found);
  if (own_bytes() == 0) return;
  VkPhysicalDeviceMemoryProperties& of = found->memoryProperties;
  const VkDeviceSize hosts = of.memoryHeaps[0].size;
  of.memoryHeapCount = of.memoryTypeCount = 2;
  of.memoryHeaps[0] = {own_bytes(), VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
  of.memoryHeaps[1] = {hosts, 0};
  of.memoryTypes[0] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0};
  of.memoryTypes[1] = {VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 1};
}

VKAPI_ATTR void VKAPI_CALL requirements(VkDevice device, VkBuffer buffer, VkMemoryRequirements* needs) {
  reinterpret_cast<PFN_vkGetBufferMemoryRequirements>(next_device(device, "vkGetBufferMemoryRequirements"))(device, buffer, needs);
  if (own_bytes() > 0) needs->memoryTypeBits = 3;
}

VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice device, const VkMemoryAllocateInfo* info, const VkAllocationCallbacks* with,
                                        VkDeviceMemory* memory) {
  if (comes_now("memory", /*for_ever=*/true)) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
  const auto next = reinterpret_cast<PFN_vkAllocateMemory>(next_device(device, "vkAllocateMemory"));
  if (own_bytes() == 0) return next(device, info, with, memory);
  std::lock_guard lock(mutex);
  const bool is_own = info->memoryTypeIndex == 0;
  if (is_own && info->allocationSize > own_bytes() - allocated) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
  VkMemoryAllocateInfo below = *info;
  below.memoryTypeIndex = 0;
  const VkResult result = next(device, &below, with, memory);
  if (result != VK_SUCCESS || !is_own) return result;
  allocations[*memory] = info->allocationSize;
  allocated += info->allocationSize;
  most_allocated = std::max(most_allocated, allocated);
  return result;
}

VKAPI_ATTR void VKAPI_CALL free_memory(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks* with) {
  {
    std::lock_guard lock(mutex);
    if (const auto found = allocations.find(memory); found != allocations.end()) {
      allocated -= found->second;
      allocations.erase(found);
    }
  }
  reinterpret_cast<PFN_vkFreeMemory>(next_device(device, "vkFreeMemory"))(device, memory, with);
}

VkDevice the_device = VK_NULL_HANDLE;

VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t count, const VkSubmitInfo* infos, VkFence fence) {
  if (comes_now("lost", /*for_ever=*/false)) return VK_ERROR_DEVICE_LOST;
  return reinterpret_cast<PFN_vkQueueSubmit>(next_device(the_device, "vkQueueSubmit"))(queue, count, infos, fence);
}

VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo* info, const VkAllocationCallbacks* with, VkInstance* instance) {
  auto* link = static_cast<VkLayerInstanceCreateInfo*>(const_cast<void*>(info->pNext));
  while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
    link = static_cast<VkLayerInstanceCreateInfo*>(const_cast<void*>(link->pNext));
  next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
  link->u.pLayerInfo = link->u.pLayerInfo->pNext;
  const VkResult result = of_instance<PFN_vkCreateInstance>("vkCreateInstance")(info, with, instance);
  if (result != VK_SUCCESS) return result;
  the_instance = *instance;
  next_features = of_instance<PFN_vkGetPhysicalDeviceFeatures2>("vkGetPhysicalDeviceFeatures2");
  next_families = of_instance<PFN_vkGetPhysicalDeviceQueueFamilyProperties>("vkGetPhysicalDeviceQueueFamilyProperties");
  next_extensions = of_instance<PFN_vkEnumerateDeviceExtensionProperties>("vkEnumerateDeviceExtensionProperties");
  next_memory = of_instance<PFN_vkGetPhysicalDeviceMemoryProperties2>("vkGetPhysicalDeviceMemoryProperties2");
  return result;
}

VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo* info, const VkAllocationCallbacks* with,
                                             VkDevice* device) {
  auto* link = static_cast<VkLayerDeviceCreateInfo*>(const_cast<void*>(info->pNext));
  while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
    link = static_cast<VkLayerDeviceCreateInfo*>(const_cast<void*>(link->pNext));
  next_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
  const auto create = reinterpret_cast<PFN_vkCreateDevice>(link->u.pLayerInfo->pfnNextGetInstanceProcAddr(the_instance, "vkCreateDevice"));
  link->u.pLayerInfo = link->u.pLayerInfo->pNext;
  const VkResult result = create(physical, info, with, device);
  if (result == VK_SUCCESS) the_device = *device;
  return result;
}

PFN_vkVoidFunction own(const char* name) {
  const struct {
    const char* name;
    PFN_vkVoidFunction function;
  } functions[] = {{"vkGetPhysicalDeviceFeatures2", reinterpret_cast<PFN_vkVoidFunction>(features)},
                   {"vkGetPhysicalDeviceQueueFamilyProperties", reinterpret_cast<PFN_vkVoidFunction>(families)},
                   {"vkEnumerateDeviceExtensionProperties", reinterpret_cast<PFN_vkVoidFunction>(extensions)},
                   {"vkGetPhysicalDeviceMemoryProperties2", reinterpret_cast<PFN_vkVoidFunction>(memory_properties)},
                   {"vkGetBufferMemoryRequirements", reinterpret_cast<PFN_vkVoidFunction>(requirements)},
                   {"vkAllocateMemory", reinterpret_cast<PFN_vkVoidFunction>(allocate)},
                   {"vkFreeMemory", reinterpret_cast<PFN_vkVoidFunction>(free_memory)},
                   {"vkQueueSubmit", reinterpret_cast<PFN_vkVoidFunction>(submit)},
                   {"vkCreateInstance", reinterpret_cast<PFN_vkVoidFunction>(create_instance)},
                   {"vkCreateDevice", reinterpret_cast<PFN_vkVoidFunction>(create_device)}};
  for (const auto& function : functions)
    if (std::strcmp(function.name, name) == 0) return function.function;
  return nullptr;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance instance, const char* name) {
  if (PFN_vkVoidFunction function = own(name)) return function;
  return next_instance ? next_instance(instance, name) : nullptr;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char* name) {
  if (PFN_vkVoidFunction function = own(name)) return function;
  return next_device(device, name);
}

}  // namespace

// For the test: bytes of the device's own memory that are allocated, and the most since the last call.
extern "C" __attribute__((visibility("default"))) uint64_t treadle_test_allocated() {
  std::lock_guard lock(mutex);
  return allocated;
}
extern "C" __attribute__((visibility("default"))) uint64_t treadle_test_most_allocated() {
  std::lock_guard lock(mutex);
  return std::exchange(most_allocated, allocated);
}

extern "C" __attribute__((visibility("default"))) VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface* with) {
  with->loaderLayerInterfaceVersion = 2;
  with->pfnGetInstanceProcAddr = instance_function;
  with->pfnGetDeviceProcAddr = device_function;
  with->pfnGetPhysicalDeviceProcAddr = nullptr;
  return VK_SUCCESS;
}
