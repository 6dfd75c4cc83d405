// Vulkan's functions. They are loaded at run time, because a machine may lack Vulkan, and programs that use no GPU should not load it.
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

/// The process's Vulkan instance. It is never destroyed, because drivers do not expect to be unloaded.
struct Instance {
  VkInstance handle = VK_NULL_HANDLE;
  TREADLE_VULKAN_INSTANCE_FUNCTIONS(TREADLE_VULKAN_POINTER)

  /// Returns the instance. The first call loads libvulkan.so.1. @throws Error(not_found) that names what is missing, at every call
  static const Instance& get();
};

/// The Vulkan functions for one device. Calls go directly to the driver instead of through the loader.
struct DeviceFunctions {
  TREADLE_VULKAN_DEVICE_FUNCTIONS(TREADLE_VULKAN_POINTER)
};

#undef TREADLE_VULKAN_POINTER

/// Checks the result of a Vulkan function. @throws Error unless it is VK_SUCCESS: resource_exhausted if memory is exhausted, io_error if
/// the device is lost, internal for other results. The message reads "DEVICE failed to WHAT: VK_ERROR_..."
void check(VkResult result, std::string_view device, std::string_view what);

}  // namespace treadle::vulkan
