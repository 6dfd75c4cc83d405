// Lists the Vulkan devices of the machine, and opens them.
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

/// Optional features of a device, which shaders may use only if it has them. All devices have 32-bit integers and floats.
struct Features {
  bool storage8 = false, storage16 = false;        ///< access to elements of 8 and 16 bits in memory
  bool int64 = false, float64 = false;             ///< arithmetic in 64 bits
  uint32_t max_groups[3] = {65535, 65535, 65535};  ///< most work groups of a dispatch, per dimension
  uint32_t shared_bytes = 16384;                   ///< size of the memory that the invocations of a work group share
};

/// A Vulkan device of the machine that has not been opened yet.
struct PhysicalDevice {
  VkPhysicalDevice handle = VK_NULL_HANDLE;
  std::string name;          ///< the driver's name for the device, such as "NVIDIA H200"
  bool is_software = false;  ///< true: a software implementation, which computes on the CPU
  std::string lacks;         ///< names of required features that the device lacks; empty: it can be used
  uint64_t memory_bytes = 0;
  uint32_t vendor_id = 0, device_id = 0;  ///< PCI ids of vendor and device
  bool is_discrete = false;               ///< true: the device has its own memory
  std::string identity;                   ///< identifies device and driver, for files of compiled pipelines
};

/// Lists the machine's Vulkan devices: hardware first, then software implementations. @throws Error(not_found) if there is no Vulkan.
std::vector<PhysicalDevice> physical_devices();

class Connection {
 public:
  /// Opens the device. @throws Error(not_found) if the device lacks features that Treadle needs.
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
    uint32_t bits = 0;  ///< number of valid bits of a time stamp; 0: the queue has no time stamps
    double ns_per_tick = 1;
    /// Function that reads the device's clock together with CLOCK_MONOTONIC; null if the driver does not have it.
    PFN_vkGetCalibratedTimestampsEXT get_calibrated = nullptr;
  };
  const TimeStampUnit& time_stamps() const { return time_stamps_; }
  /// Returns the size of the device's memory in bytes, free or not.
  uint64_t memory_bytes() const { return memory_bytes_; }
  /// Returns how many more bytes of the device's memory this process can use, as VK_EXT_memory_budget reports; memory_bytes() if the driver
  /// does not have this extension.
  uint64_t free_bytes() const;
  const std::string& identity() const { return identity_; }
  /// Returns false in a process that was forked after the device had been opened. Such a process must not call any function of the driver.
  bool is_of_this_process() const { return opened_in_ == fork_generation(); }
  /// Throws in a forked process. @throws Error(not_implemented) unless is_of_this_process()
  void check_process() const;
  /// Returns true after any call has returned VK_ERROR_DEVICE_LOST.
  bool is_lost() const { return lost_.load(std::memory_order_relaxed); }

  /// Returns the first memory type of the mask `allowed` that has all properties in `wanted`, and also those in `preferred` if possible.
  /// @throws Error(not_found) if no type has the properties `wanted`
  uint32_t memory_type(uint32_t allowed, VkMemoryPropertyFlags wanted, VkMemoryPropertyFlags preferred = 0) const;
  /// Submits work to the queue. Thread-safe: locks a mutex, because in Vulkan only one thread at a time may submit to a queue.
  void submit(const VkSubmitInfo& work) const;
  /// Waits until the driver no longer uses the submitted objects. Waiting for a semaphore is not enough: the work is then done, but threads
  /// of the driver may still access the semaphore and the command buffers (Mesa before 24.1).
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
