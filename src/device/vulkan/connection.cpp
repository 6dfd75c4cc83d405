#include "device/vulkan/connection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "treadle/error.h"

namespace treadle::vulkan {
namespace {

constexpr uint32_t kGroupSize = 256;  // invocations per work group in Treadle's shaders

/// The chain of structs by which Vulkan reports the features of a device, and by which a device is opened with features.
struct FeatureChain {
  VkPhysicalDeviceFeatures2 base{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
  VkPhysicalDeviceVulkan11Features v11{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES};
  VkPhysicalDeviceVulkan12Features v12{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};

  FeatureChain() {
    base.pNext = &v11;
    v11.pNext = &v12;
  }
  FeatureChain(const FeatureChain&) = delete;
  FeatureChain& operator=(const FeatureChain&) = delete;
};

std::vector<VkQueueFamilyProperties> families_of(VkPhysicalDevice device) {
  uint32_t count = 0;
  Instance::get().GetPhysicalDeviceQueueFamilyProperties(device, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  Instance::get().GetPhysicalDeviceQueueFamilyProperties(device, &count, families.data());
  return families;
}

std::optional<uint32_t> compute_family(VkPhysicalDevice device) {
  const std::vector<VkQueueFamilyProperties> families = families_of(device);
  // Prefers a queue family without graphics, because such queues often run concurrently with graphics work of the desktop.
  for (const VkQueueFlags unwanted : {VkQueueFlags{VK_QUEUE_GRAPHICS_BIT}, VkQueueFlags{0}})
    for (uint32_t i = 0; i < families.size(); ++i)
      if ((families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) && !(families[i].queueFlags & unwanted)) return i;
  return std::nullopt;
}

VkPhysicalDeviceMemoryProperties memory_of(VkPhysicalDevice device) {
  VkPhysicalDeviceMemoryProperties2 memory{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
  Instance::get().GetPhysicalDeviceMemoryProperties2(device, &memory);
  return memory.memoryProperties;
}

uint64_t device_local_bytes(const VkPhysicalDeviceMemoryProperties& memory) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < memory.memoryHeapCount; ++i)
    if (memory.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) bytes = std::max<uint64_t>(bytes, memory.memoryHeaps[i].size);
  return bytes;
}

bool has_extension(VkPhysicalDevice device, const char* name) {
  uint32_t count = 0;
  Instance::get().EnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> extensions(count);
  Instance::get().EnumerateDeviceExtensionProperties(device, nullptr, &count, extensions.data());
  return std::any_of(extensions.begin(), extensions.end(), [&](const auto& has) { return std::strcmp(has.extensionName, name) == 0; });
}

// Returns true if the driver can read the device's clock and the host's CLOCK_MONOTONIC at the same time.
bool compares_clocks(VkPhysicalDevice device) {
  if (!has_extension(device, VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME)) return false;
  const auto list = reinterpret_cast<PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT>(
      Instance::get().GetInstanceProcAddr(Instance::get().handle, "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT"));
  uint32_t count = 0;
  if (!list || list(device, &count, nullptr) != VK_SUCCESS) return false;
  std::vector<VkTimeDomainEXT> domains(count);
  if (list(device, &count, domains.data()) != VK_SUCCESS) return false;
  const auto has = [&](VkTimeDomainEXT domain) { return std::find(domains.begin(), domains.end(), domain) != domains.end(); };
  return has(VK_TIME_DOMAIN_DEVICE_EXT) && has(VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT);
}

std::string find_lack(VkPhysicalDevice device, const VkPhysicalDeviceProperties& properties) {
  if (properties.apiVersion < VK_API_VERSION_1_2)
    return fmt::format("Vulkan 1.2 (it has {}.{})", VK_API_VERSION_MAJOR(properties.apiVersion),
                       VK_API_VERSION_MINOR(properties.apiVersion));
  FeatureChain has;
  Instance::get().GetPhysicalDeviceFeatures2(device, &has.base);
  if (!has.v12.bufferDeviceAddress) return "the feature bufferDeviceAddress";
  if (!has.v12.timelineSemaphore) return "the feature timelineSemaphore";
  if (!has.v12.scalarBlockLayout) return "the feature scalarBlockLayout";
  if (properties.limits.maxComputeWorkGroupInvocations < kGroupSize || properties.limits.maxComputeWorkGroupSize[0] < kGroupSize)
    return fmt::format("work groups of {} invocations", kGroupSize);
  if (!compute_family(device)) return "a queue for compute shaders";
  return {};
}

}  // namespace

std::vector<PhysicalDevice> physical_devices() {
  const Instance& vulkan = Instance::get();
  uint32_t count = 0;
  check(vulkan.EnumeratePhysicalDevices(vulkan.handle, &count, nullptr), "Vulkan", "count its devices");
  std::vector<VkPhysicalDevice> handles(count);
  check(vulkan.EnumeratePhysicalDevices(vulkan.handle, &count, handles.data()), "Vulkan", "list its devices");
  std::vector<PhysicalDevice> found;
  for (VkPhysicalDevice handle : handles) {
    VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    vulkan.GetPhysicalDeviceProperties2(handle, &properties);
    const VkPhysicalDeviceProperties& of = properties.properties;
    found.push_back({.handle = handle,
                     .name = properties.properties.deviceName,
                     .is_software = properties.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU,
                     .lacks = find_lack(handle, properties.properties),
                     .memory_bytes = device_local_bytes(memory_of(handle)),
                     .vendor_id = properties.properties.vendorID,
                     .device_id = properties.properties.deviceID,
                     .is_discrete = properties.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU,
                     .identity = fmt::format("{:08x} {:08x} {:08x} {:02x}", of.vendorID, of.deviceID, of.driverVersion,
                                             fmt::join(of.pipelineCacheUUID, ""))});
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.is_software < b.is_software; });
  return found;
}

Connection::Connection(const PhysicalDevice& physical)
    : physical_(physical.handle),
      name_(physical.name),
      memory_(memory_of(physical.handle)),
      memory_bytes_(physical.memory_bytes),
      identity_(physical.identity),
      has_budget_(has_extension(physical.handle, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME)) {
  if (!physical.lacks.empty()) throw Error(ErrorCode::not_found, fmt::format("{} cannot be used: it lacks {}", name_, physical.lacks));
  const Instance& vulkan = Instance::get();
  queue_family_ = *compute_family(physical.handle);

  FeatureChain has;
  vulkan.GetPhysicalDeviceFeatures2(physical.handle, &has.base);
  FeatureChain wanted;
  wanted.v12.bufferDeviceAddress = wanted.v12.timelineSemaphore = wanted.v12.scalarBlockLayout = VK_TRUE;
  wanted.base.features.shaderInt64 = has.base.features.shaderInt64;
  wanted.base.features.shaderFloat64 = has.base.features.shaderFloat64;
  wanted.v12.storageBuffer8BitAccess = has.v12.storageBuffer8BitAccess;
  wanted.v11.storageBuffer16BitAccess = has.v11.storageBuffer16BitAccess;
  features_.int64 = has.base.features.shaderInt64;
  features_.float64 = has.base.features.shaderFloat64;
  features_.storage8 = has.v12.storageBuffer8BitAccess;
  features_.storage16 = has.v11.storageBuffer16BitAccess;
  VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  vulkan.GetPhysicalDeviceProperties2(physical.handle, &properties);
  std::copy_n(properties.properties.limits.maxComputeWorkGroupCount, 3, features_.max_groups);
  features_.shared_bytes = properties.properties.limits.maxComputeSharedMemorySize;

  const float priority = 1;
  const VkDeviceQueueCreateInfo queue{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, nullptr, 0, queue_family_, 1, &priority};
  VkDeviceCreateInfo info{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  info.pNext = &wanted.base;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  std::vector<const char*> extensions;
  const bool compares = compares_clocks(physical.handle);
  if (has_budget_) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  if (compares) extensions.push_back(VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME);
  info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  check(vulkan.CreateDevice(physical.handle, &info, nullptr, &handle_), "open");
  const char* missing = nullptr;
#define TREADLE_VULKAN_FIND(name)                                                                  \
  functions_.name = reinterpret_cast<PFN_vk##name>(vulkan.GetDeviceProcAddr(handle_, "vk" #name)); \
  if (!functions_.name) missing = "vk" #name;
  TREADLE_VULKAN_DEVICE_FUNCTIONS(TREADLE_VULKAN_FIND)
#undef TREADLE_VULKAN_FIND
  if (missing) {
    if (functions_.DestroyDevice) functions_.DestroyDevice(handle_, nullptr);
    throw Error(ErrorCode::not_found, fmt::format("the driver of {} has no function {}", name_, missing));
  }
  functions_.GetDeviceQueue(handle_, queue_family_, 0, &queue_);
  time_stamps_ = {families_of(physical.handle)[queue_family_].timestampValidBits, properties.properties.limits.timestampPeriod, nullptr};
  if (compares)
    time_stamps_.get_calibrated =
        reinterpret_cast<PFN_vkGetCalibratedTimestampsEXT>(vulkan.GetDeviceProcAddr(handle_, "vkGetCalibratedTimestampsEXT"));
}

Connection::~Connection() {
  if (is_of_this_process()) functions_.DestroyDevice(handle_, nullptr);
}

void Connection::check_process() const {
  if (is_of_this_process()) return;
  throw Error(ErrorCode::not_implemented,
              fmt::format("{} was opened before this process was forked, and its driver works in the parent only; start processes that "
                          "use GPUs anew (Python: multiprocessing's method spawn)",
                          name_));
}

uint64_t Connection::free_bytes() const {
  if (!has_budget_) return memory_bytes_;
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
  VkPhysicalDeviceMemoryProperties2 memory{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, &budget, {}};
  Instance::get().GetPhysicalDeviceMemoryProperties2(physical_, &memory);
  uint64_t free = 0;
  for (uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; ++i)
    if ((memory.memoryProperties.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) && budget.heapBudget[i] > budget.heapUsage[i])
      free = std::max<uint64_t>(free, budget.heapBudget[i] - budget.heapUsage[i]);
  return free;
}

uint32_t Connection::memory_type(uint32_t allowed, VkMemoryPropertyFlags wanted, VkMemoryPropertyFlags preferred) const {
  for (const VkMemoryPropertyFlags flags : {wanted | preferred, wanted})
    for (uint32_t i = 0; i < memory_.memoryTypeCount; ++i)
      if ((allowed >> i & 1U) && (memory_.memoryTypes[i].propertyFlags & flags) == flags) return i;
  throw Error(ErrorCode::not_found, fmt::format("{} has no memory with the properties {:#x}", name_, wanted));
}

void Connection::submit(const VkSubmitInfo& work) const {
  check_process();
  std::lock_guard lock(queue_mutex_);
  check(functions_.QueueSubmit(queue_, 1, &work, VK_NULL_HANDLE), "take work");
}

void Connection::wait_idle() const noexcept {
  if (!is_of_this_process()) return;
  std::lock_guard lock(queue_mutex_);
  functions_.QueueWaitIdle(queue_);  // rather than waiting for a semaphore, which a lost device never signals
}

}  // namespace treadle::vulkan
