// GPUs through Vulkan: memory at device addresses, streams of command buffers, events on timeline semaphores.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/devices/device.h"
#include "device/vulkan/connection.h"
#include "device/vulkan/shader.h"

namespace treadle::vulkan {

/// Pointers to its memory are device addresses: kernels pass them in push constants, and the host must not dereference them.
class VulkanDevice : public Device {
 public:
  /// Opens the device. @throws Error(not_found) if it lacks what Treadle needs
  static std::shared_ptr<VulkanDevice> open(const PhysicalDevice& physical, std::string name);

  virtual const Features& features() const = 0;
  /// True if the driver has given the device up: all its work fails, and it may be opened anew.
  virtual bool is_lost() const = 0;
  /// See Pipelines::keep_in().
  virtual void keep_pipelines_in(const std::string& folder) = 0;

 protected:
  explicit VulkanDevice(std::string name) : Device(std::move(name)) {}
};

/// Records work after all earlier work of the stream: a dispatch sees everything that earlier work has written.
class VulkanStream : public Stream {
 public:
  /// The stream that runs the calling thread's kernel, inside Stream::enqueue(). Null elsewhere.
  static VulkanStream* current() noexcept;

  /// @param push    the shader's push constants, at most kMaxPushBytes
  /// @param groups  work groups per dimension; nothing is dispatched if one of them is 0
  virtual void dispatch(const Shader& shader, std::span<const std::byte> push, std::array<uint32_t, 3> groups) = 0;
  virtual const Features& features() const = 0;

  /// Lets a shader report an error, such as an index outside of its axis: it writes `number` to the word at `address`.
  struct FaultSite {
    uint64_t address = 0;
    uint32_t number = 0;
  };
  /// Returns a site for work up to the next synchronize(). If a shader writes there, synchronize() throws Error(invalid_argument) with this
  /// text.
  virtual FaultSite fault_site(std::string text) = 0;
};

}  // namespace treadle::vulkan
