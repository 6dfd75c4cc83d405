// GPUs by Vulkan: memory with device addresses, streams that submit command buffers, and events by timeline semaphores.
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

/// A Vulkan device. Pointers to its memory are device addresses: kernels pass them to shaders in push constants, and the host must not
/// dereference them.
class VulkanDevice : public Device {
 public:
  /// Opens the device. @throws Error(not_found) if it lacks features that Treadle needs
  static std::shared_ptr<VulkanDevice> open(const PhysicalDevice& physical, std::string name);

  virtual const Features& features() const = 0;
  /// Returns true if the driver has reported that the device is lost. From then on all work fails, and the device may be opened again.
  virtual bool is_lost() const = 0;
  /// See Pipelines::keep_in().
  virtual void keep_pipelines_in(const std::string& folder) = 0;

 protected:
  explicit VulkanDevice(std::string name) : Device(std::move(name)) {}
};

/// A stream that records commands in order. By default, each dispatch sees everything that earlier commands have written. A kernel can
/// relax this by declaring which memory it uses (declare_uses), or that its commands do not depend on each other (declare_apart).
class VulkanStream : public Stream {
 public:
  /// Returns the stream in whose enqueue() the calling thread is, so that kernels can record commands; null outside of enqueue().
  static VulkanStream* current() noexcept;

  /// Records a dispatch. @param push  the shader's push constants, at most kMaxPushBytes
  /// @param groups  number of work groups per dimension; if one of them is 0, nothing is dispatched
  virtual void dispatch(const Shader& shader, std::span<const std::byte> push, std::array<uint32_t, 3> groups) = 0;
  /// A kernel may call this before its first dispatch or copy. It declares that its dispatches and copies do not depend on each other.
  virtual void declare_apart() = 0;
  virtual const Features& features() const = 0;

  /// Lets a shader report an error, such as an index that is out of range: the shader writes `number` to the 32-bit word at
  /// `address`.
  struct FaultSite {
    uint64_t address = 0;
    uint32_t number = 0;
  };
  /// Makes a fault site for work up to the next synchronize(). If a shader reports it, synchronize() throws Error(invalid_argument) with
  /// this text.
  virtual FaultSite fault_site(std::string text) = 0;
};

}  // namespace treadle::vulkan
