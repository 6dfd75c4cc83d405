// Vulkan's functions, found at run time: a machine may have no Vulkan, and a program that uses no GPU should not load it.
#pragma once

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include <string_view>

namespace treadle::vulkan {

#define TREADLE_VULKAN_INSTANCE_FUNCTIONS(F) \
  F(DestroyInstance)                         \
  F(EnumeratePhysicalDevices)                \
  F(EnumerateDeviceExtensionProperties)      \
  F(GetPhysicalDeviceProperties2)            \
  F(GetPhysicalDeviceFeatures2)              \
  F(GetPhysicalDeviceMemoryProperties2)      \
  F(GetPhysicalDeviceQueueFamilyProperties)  \
  F(GetInstanceProcAddr)                     \
  F(CreateDevice)                            \
  F(GetDeviceProcAddr)

#define TREADLE_VULKAN_DEVICE_FUNCTIONS(F) \
  F(DestroyDevice)                         \
  F(GetDeviceQueue)                        \
  F(QueueSubmit)                           \
  F(QueueWaitIdle)                         \
  F(AllocateMemory)                        \
  F(FreeMemory)                            \
  F(MapMemory)                             \
  F(CreateBuffer)                          \
  F(DestroyBuffer)                         \
  F(GetBufferMemoryRequirements)           \
  F(BindBufferMemory)                      \
  F(GetBufferDeviceAddress)                \
  F(CreateSemaphore)                       \
  F(DestroySemaphore)                      \
  F(WaitSemaphores)                        \
  F(GetSemaphoreCounterValue)              \
  F(CreateCommandPool)                     \
  F(DestroyCommandPool)                    \
  F(AllocateCommandBuffers)                \
  F(BeginCommandBuffer)                    \
  F(EndCommandBuffer)                      \
  F(CmdPipelineBarrier)                    \
  F(CmdCopyBuffer)                         \
  F(CmdBindPipeline)                       \
  F(CmdPushConstants)                      \
  F(CmdDispatch)                           \
  F(CreateQueryPool)                       \
  F(DestroyQueryPool)                      \
  F(CmdResetQueryPool)                     \
  F(CmdWriteTimestamp)                     \
  F(GetQueryPoolResults)                   \
  F(CreateShaderModule)                    \
  F(DestroyShaderModule)                   \
  F(CreatePipelineLayout)                  \
  F(DestroyPipelineLayout)                 \
  F(CreateComputePipelines)                \
  F(DestroyPipeline)                       \
  F(CreatePipelineCache)                   \
  F(DestroyPipelineCache)                  \
  F(MergePipelineCaches)                   \
  F(GetPipelineCacheData)

#define TREADLE_VULKAN_POINTER(name) PFN_vk##name name = nullptr;

/// The process's connection to the Vulkan loader. Never closed, since drivers do not expect to be unloaded.
struct Instance {
  VkInstance handle = VK_NULL_HANDLE;
  TREADLE_VULKAN_INSTANCE_FUNCTIONS(TREADLE_VULKAN_POINTER)

  /// Loads libvulkan.so.1 at the first call. @throws Error(not_found) naming what is missing; every later call throws it again.
  static const Instance& get();
};

/// The functions of one device, without the loader's dispatch in between.
struct DeviceFunctions {
  TREADLE_VULKAN_DEVICE_FUNCTIONS(TREADLE_VULKAN_POINTER)
};

#undef TREADLE_VULKAN_POINTER

/// @throws Error, unless the result is VK_SUCCESS: resource_exhausted for lack of memory, io_error for a device that is lost, internal
/// otherwise. The message reads "DEVICE failed to WHAT: VK_ERROR_...".
void check(VkResult result, std::string_view device, std::string_view what);

}  // namespace treadle::vulkan
