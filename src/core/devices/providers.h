// Execution providers: the names that ONNX Runtime uses for devices.
#pragma once

#include <string_view>

namespace treadle {

inline constexpr const char* kCpuProvider = "CPUExecutionProvider";
inline constexpr const char* kVulkanProvider = "VulkanExecutionProvider";

/// Returns the name of ONNX Runtime's execution provider for a device name of a session.
inline const char* provider_of(std::string_view device) { return device.starts_with("gpu") ? kVulkanProvider : kCpuProvider; }

}  // namespace treadle
