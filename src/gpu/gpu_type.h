// Registers GPUs as a device type: "gpu" is the machine's first one, "gpu:1" the second.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace treadle::gpu {

/// A GPU of this machine.
struct Gpu {
  std::string name;                       ///< as sessions name it: "gpu:0"
  std::string model;                      ///< as its driver calls it
  bool is_software = false;               ///< it computes on the CPU
  std::string lacks;                      ///< what Treadle needs and it does not have; empty if sessions can use it
  uint64_t memory_bytes = 0;              ///< of the device's own
  uint32_t vendor_id = 0, device_id = 0;  ///< PCI's numbers
  bool is_discrete = false;
};

/// True if TREADLE_SOFTWARE_GPU=1 lets programs choose implementations on the CPU like GPUs, for tests on machines without one.
bool takes_software();

/// The GPUs that programs are offered to choose among: those that work and, unless takes_software(), are real. None where there is no
/// Vulkan.
std::vector<Gpu> offered_gpus();

/// Returns the GPUs of this machine, real ones first. @throws Error(not_found) if it has no Vulkan, Error(not_implemented) if the build has
/// none
std::vector<Gpu> list_gpus();

/// Registers the type "gpu"; only the first call has an effect. In a build without Vulkan, sessions that name "gpu" get an error.
void register_gpu_type();

}  // namespace treadle::gpu
