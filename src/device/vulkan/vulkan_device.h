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

/// A device of Vulkan. Pointers to its memory are device addresses: kernels pass them in push constants, and the host must not dereference
/// them.
class VulkanDevice : public Device {
 public:
  /// Opens the device. @throws Error(not_found) if it lacks what Treadle needs
  static std::shared_ptr<VulkanDevice> open(const PhysicalDevice& physical, std::string name);

  virtual const Features& features() const = 0;
  /// Returns true if the driver has given up the device: all work fails from then on, and the device may be opened anew.
  virtual bool is_lost() const = 0;
  /// See Pipelines::keep_in().
  virtual void keep_pipelines_in(const std::string& folder) = 0;

 protected:
  explicit VulkanDevice(std::string name) : Device(std::move(name)) {}
};

/// Records work behind all earlier work of the stream. A dispatch sees everything that earlier work has written, unless the work has
/// declared which memory it uses (declare_uses) or that its commands do not depend on each other (declare_apart).
class VulkanStream : public Stream {
 public:
  /// Returns the stream that runs the calling thread's kernel, if the thread is inside Stream::enqueue(). Otherwise null.
  static VulkanStream* current() noexcept;

  /// @param push    the shader's push constants, at most kMaxPushBytes
  /// @param groups  work groups per dimension; nothing is dispatched if one of them is 0
  virtual void dispatch(const Shader& shader, std::span<const std::byte> push, std::array<uint32_t, 3> groups) = 0;
  /// A kernel calls this before its first dispatch or copy if none of its dispatches and copies depends on another one of them.
  virtual void declare_apart() = 0;
  virtual const Features& features() const = 0;

  /// A place to which a shader can write an error, such as an index outside of its axis: the shader writes `number` to the word at
  /// `address`.
  struct FaultSite {
    uint64_t address = 0;
    uint32_t number = 0;
  };
  /// Returns a fault site for work up to the next synchronize(). If a shader writes there, synchronize() throws Error(invalid_argument)
  /// with this text.
  virtual FaultSite fault_site(std::string text) = 0;
};

}  // namespace treadle::vulkan
