// The execution providers, under the names that they have in ONNX Runtime's interface: one for the CPU, and Vulkan for GPUs.
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

/// Returns the full name of a provider for its full or short name (such as "CPU" or "Vulkan"); null if there is no such provider.
const char* find_provider(std::string_view name);

/// Lets sessions with these options run on the provider's device. The Vulkan provider has the option `device_id`: N selects the device
/// gpu:N. Without this option, sessions use the first real GPU (not a software implementation).
/// @param provider  name from find_provider()
/// @throws Error(invalid_argument) for an unknown option, or if the options name another device
void use_provider(SessionOptions& options, std::string_view provider, const std::map<std::string, std::string>& provider_options);

}  // namespace treadle::ort
