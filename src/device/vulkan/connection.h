// An open Vulkan device: its handle, queues and features.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/fork_mutex.h"
#include "device/vulkan/api.h"

namespace treadle::vulkan {

/// Features that shaders may use. All devices have 32-bit integers and floats.
struct Features {
  bool storage8 = false, storage16 = false;        ///< 8-bit and 16-bit elements in memory
  bool int64 = false, float64 = false;             ///< arithmetic in these types
  uint32_t max_groups[3] = {65535, 65535, 65535};  ///< work groups of one dispatch, per dimension
  uint32_t shared_bytes = 16384;                   ///< memory that the invocations of one group share
};

/// A device of the machine, before it is opened.
struct PhysicalDevice {
  VkPhysicalDevice handle = VK_NULL_HANDLE;
  std::string name;          ///< the driver's name: "NVIDIA H200"
  bool is_software = false;  ///< an implementation that computes on the CPU
  std::string lacks;         ///< names of required features that it lacks; empty: it can be used
  uint64_t memory_bytes = 0;
  uint32_t vendor_id = 0, device_id = 0;  ///< numbers assigned by PCI
  bool is_discrete = false;               ///< it has separate memory
  std::string identity;                   ///< identifies the device and its driver, for which pipelines are compiled
};

/// Lists the machine's devices, hardware first, then software. @throws Error(not_found) if there is no Vulkan.
std::vector<PhysicalDevice> physical_devices();

class Connection {
 public:
  /// @throws Error(not_found) if the device lacks what Treadle needs.
  explicit Connection(const PhysicalDevice& physical);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const DeviceFunctions* operator->() const { return &functions_; }
  VkDevice handle() const { return handle_; }
  const std::string& name() const { return name_; }
  const Features& features() const { return features_; }
  uint32_t queue_family() const { return queue_family_; }

  /// Describes the clock that the queue's time stamps come from.
  struct TimeStampUnit {
    uint32_t bits = 0;  ///< number of bits of a stamp; 0: the queue has no time stamps
    double ns_per_tick = 1;
    PFN_vkGetCalibratedTimestampsEXT get_calibrated = nullptr;  ///< reads it together with CLOCK_MONOTONIC; null: the driver cannot do that
  };
  const TimeStampUnit& time_stamps() const { return time_stamps_; }
  /// The device's whole memory, in bytes.
  uint64_t memory_bytes() const { return memory_bytes_; }
  /// Returns how many bytes of the device's memory this process can use now, as the driver says by VK_EXT_memory_budget; memory_bytes() if
  /// the driver does not say.
  uint64_t free_bytes() const;
  const std::string& identity() const { return identity_; }
  /// False in a child that was forked from the process that opened the device. The child must not call any function of the driver.
  bool is_of_this_process() const { return opened_in_ == fork_generation(); }
  /// @throws Error(not_implemented) unless is_of_this_process()
  void check_process() const;
  /// True once a call has returned VK_ERROR_DEVICE_LOST.
  bool is_lost() const { return lost_.load(std::memory_order_relaxed); }

  /// Returns the first memory type among `allowed` (a mask) with the wanted properties and, if any type has them, the preferred ones.
  /// @throws Error(not_found)
  uint32_t memory_type(uint32_t allowed, VkMemoryPropertyFlags wanted, VkMemoryPropertyFlags preferred = 0) const;
  /// Thread-safe, as Vulkan lets only one thread at a time submit to a queue.
  void submit(const VkSubmitInfo& work) const;
  /// Waits until the driver holds nothing of the submitted work. A signalled semaphore means that work is done, but drivers' own threads
  /// may still access it and the command buffers then (Mesa before 24.1).
  void wait_idle() const noexcept;
  void check(VkResult result, const char* what) const {
    if (result == VK_ERROR_DEVICE_LOST) lost_.store(true, std::memory_order_relaxed);
    vulkan::check(result, name_, what);
  }

 private:
  const VkPhysicalDevice physical_;
  const uint32_t opened_in_ = fork_generation();
  VkDevice handle_ = VK_NULL_HANDLE;
  DeviceFunctions functions_;
  std::string name_;
  Features features_;
  VkPhysicalDeviceMemoryProperties memory_{};
  uint64_t memory_bytes_ = 0;
  std::string identity_;
  bool has_budget_ = false;
  TimeStampUnit time_stamps_;
  mutable std::atomic<bool> lost_ = false;
  uint32_t queue_family_ = 0;
  VkQueue queue_ = VK_NULL_HANDLE;
  mutable std::mutex queue_mutex_;
};

}  // namespace treadle::vulkan
