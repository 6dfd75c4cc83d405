// Execution providers by ONNX Runtime's names: the CPU's, and Vulkan's for GPUs.
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

/// The provider's full name, by that or by its short one ("CPU", "Vulkan"); null: there is none.
const char* find_provider(std::string_view name);

/// Lets sessions with these options run on the provider's device. Vulkan's has the option `device_id`: N is gpu:N. Without it the first
/// real GPU is taken.
/// @param provider  of find_provider()
/// @throws Error(invalid_argument) for an unknown option, or if the options name another device
void use_provider(SessionOptions& options, std::string_view provider, const std::map<std::string, std::string>& provider_options);

}  // namespace treadle::ort
