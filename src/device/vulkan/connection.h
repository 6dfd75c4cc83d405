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

/// Features that shaders may use if the device has them. All devices have 32-bit integers and floats.
struct Features {
  bool storage8 = false, storage16 = false;        ///< elements of 8 and 16 bits in memory
  bool int64 = false, float64 = false;             ///< arithmetic in these types
  uint32_t max_groups[3] = {65535, 65535, 65535};  ///< limit of the work groups of one dispatch, per dimension
  uint32_t shared_bytes = 16384;                   ///< memory that the invocations of one group share
};

/// A device of the machine, before it is opened.
struct PhysicalDevice {
  VkPhysicalDevice handle = VK_NULL_HANDLE;
  std::string name;          ///< the driver's name for the device: "NVIDIA H200"
  bool is_software = false;  ///< true if the implementation computes on the CPU
  std::string lacks;         ///< names of the required features that the device lacks; empty if it can be used
  uint64_t memory_bytes = 0;
  uint32_t vendor_id = 0, device_id = 0;  ///< the numbers of vendor and device in PCI
  bool is_discrete = false;               ///< true if the device has separate memory
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

  /// Describes the clock from which the queue's time stamps come.
  struct TimeStampUnit {
    uint32_t bits = 0;  ///< number of bits of a time stamp; 0 if the queue has no time stamps
    double ns_per_tick = 1;
    /// Reads the device's clock together with CLOCK_MONOTONIC; null if the driver cannot do that.
    PFN_vkGetCalibratedTimestampsEXT get_calibrated = nullptr;
  };
  const TimeStampUnit& time_stamps() const { return time_stamps_; }
  /// Returns the size of the device's whole memory in bytes.
  uint64_t memory_bytes() const { return memory_bytes_; }
  /// Returns how many bytes of the device's memory this process can use now, as the driver says by VK_EXT_memory_budget; memory_bytes() if
  /// the driver does not say.
  uint64_t free_bytes() const;
  const std::string& identity() const { return identity_; }
  /// Returns false in a child that was forked from the process that opened the device. The child must not call any function of the driver.
  bool is_of_this_process() const { return opened_in_ == fork_generation(); }
  /// @throws Error(not_implemented) unless is_of_this_process()
  void check_process() const;
  /// Returns true once a call has returned VK_ERROR_DEVICE_LOST.
  bool is_lost() const { return lost_.load(std::memory_order_relaxed); }

  /// Returns the first memory type among `allowed` (a mask) that has the properties `wanted` and, if any type has them, the preferred ones.
  /// @throws Error(not_found) if no type has the properties `wanted`
  uint32_t memory_type(uint32_t allowed, VkMemoryPropertyFlags wanted, VkMemoryPropertyFlags preferred = 0) const;
  /// Submits work to the queue. Thread-safe: locks a mutex, because Vulkan lets only one thread at a time submit to a queue.
  void submit(const VkSubmitInfo& work) const;
  /// Waits until the driver does not use the submitted work any more. When a semaphore is signalled, the work is done, but drivers' own
  /// threads may still access the semaphore and the command buffers (Mesa before 24.1).
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
