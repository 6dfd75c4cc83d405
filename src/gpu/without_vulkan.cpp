// Registers the device type "gpu" in a build without Vulkan. Sessions that name it get an error.
#include "core/devices/device_registry.h"
#include "gpu/gpu_type.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

[[noreturn]] void throw_none() {
  throw Error(ErrorCode::not_implemented,
              "this build has no GPUs: it was made without the headers of Vulkan and SPIR-V, or without glslangValidator");
}

std::shared_ptr<Device> make(const DeviceRequest&) { throw_none(); }

}  // namespace

std::vector<Gpu> list_gpus() { throw_none(); }
bool takes_software() { return false; }
std::vector<Gpu> offered_gpus() { return {}; }

void register_gpu_type() {
  static const bool once = [] {
    register_device_type({.name = "gpu", .make = make, .make_host = {}, .kernels = nullptr});
    return true;
  }();
  (void)once;
}

}  // namespace treadle::gpu
