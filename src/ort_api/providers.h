// Execution providers by ONNX Runtime's names: that of the CPU, and Vulkan's for GPUs.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/devices/providers.h"
#include "treadle/session.h"

namespace treadle::ort {

using treadle::kCpuProvider;
using treadle::kVulkanProvider;
using treadle::provider_of;

/// Returns the provider's full name for a full or short name ("CPU", "Vulkan"); null: there is no such provider.
const char* find_provider(std::string_view name);

/// Lets sessions with these options run on the provider's device. Vulkan's has the option `device_id`: N is gpu:N. Without it, sessions use
/// the first real GPU.
/// @param provider  name from find_provider()
/// @throws Error(invalid_argument) for an unknown option, or if the options name another device
void use_provider(SessionOptions& options, std::string_view provider, const std::map<std::string, std::string>& provider_options);

}  // namespace treadle::ort
