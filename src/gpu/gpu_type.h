// Registers GPUs as a device type: "gpu" is the machine's first one, "gpu:1" the second.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace treadle::gpu {

/// A GPU of this machine.
struct Gpu {
  std::string name;                       ///< the name that sessions use: "gpu:0"
  std::string model;                      ///< the name that the driver gives
  bool is_software = false;               ///< true if the device computes on the CPU
  std::string lacks;                      ///< a feature that Treadle needs and the device lacks; empty if sessions can use the device
  uint64_t memory_bytes = 0;              ///< bytes of the device's own memory
  uint32_t vendor_id = 0, device_id = 0;  ///< the numbers of vendor and device in PCI
  bool is_discrete = false;
};

/// Returns true if TREADLE_SOFTWARE_GPU=1 lets programs choose Vulkan devices on the CPU as if they were GPUs. Tests use this on machines
/// without a GPU.
bool takes_software();

/// Returns the GPUs that programs can choose: those that work and, unless takes_software(), are real GPUs. Empty if there is no Vulkan.
std::vector<Gpu> offered_gpus();

/// Returns the GPUs of this machine, real ones first. @throws Error(not_found) if it has no Vulkan, Error(not_implemented) if the build has
/// none
std::vector<Gpu> list_gpus();

/// Registers the type "gpu"; only the first call has an effect. In a build without Vulkan, sessions that name "gpu" get an error.
void register_gpu_type();

}  // namespace treadle::gpu
