// Registers GPUs as a device type. "gpu" is the first GPU of the machine, "gpu:1" the second.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace treadle::gpu {

/// A GPU of this machine.
struct Gpu {
  std::string name;                       ///< the name that sessions use, such as "gpu:0"
  std::string model;                      ///< the name that the driver reports
  bool is_software = false;               ///< true: the device computes on the CPU
  std::string lacks;                      ///< a required feature that the device lacks; empty: sessions can use it
  uint64_t memory_bytes = 0;              ///< size of the device's own memory
  uint32_t vendor_id = 0, device_id = 0;  ///< PCI ids of vendor and device
  bool is_discrete = false;
};

/// Returns true if TREADLE_SOFTWARE_GPU=1 is set. Programs can then choose Vulkan devices that compute on the CPU, as if they were GPUs.
/// Tests use this on machines without a GPU.
bool takes_software();

/// Returns the GPUs that programs can choose: those that work. Software devices are included only if takes_software(). Empty without
/// Vulkan.
std::vector<Gpu> offered_gpus();

/// Returns all GPUs of this machine, real ones first. @throws Error(not_found) if the machine has no Vulkan, Error(not_implemented) if the
/// build has none
std::vector<Gpu> list_gpus();

/// Registers the device type "gpu"; later calls do nothing. In a build without Vulkan, sessions that name "gpu" get an error.
void register_gpu_type();

}  // namespace treadle::gpu
