// GPUs among the types of devices: "gpu" is the machine's first, "gpu:1" one of several.
#pragma once

namespace treadle::gpu {

/// Registers the type, however often it is called once. Where the build has no Vulkan, sessions that name "gpu" are told so.
void register_gpu_type();

}  // namespace treadle::gpu
