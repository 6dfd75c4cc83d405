#include "ort_api/providers.h"

#include <algorithm>
#include <cctype>

#include "treadle/error.h"

namespace treadle::ort {

const char* find_provider(std::string_view name) {
  for (const char* provider : {kCpuProvider, kVulkanProvider}) {
    const std::string_view full = provider;
    if (name == full || name == full.substr(0, full.size() - std::string_view("ExecutionProvider").size())) return provider;
  }
  return nullptr;
}

void use_provider(SessionOptions& options, std::string_view provider, const std::map<std::string, std::string>& provider_options) {
  if (provider == kCpuProvider) return;
  std::string device = "gpu";
  for (const auto& [key, value] : provider_options) {
    if (key != "device_id")
      throw Error(ErrorCode::invalid_argument, std::string(kVulkanProvider) + " has no option \"" + key + "\"; it has device_id");
    const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    if (value.empty() || !std::all_of(value.begin(), value.end(), is_digit))
      throw Error(ErrorCode::invalid_argument, std::string(kVulkanProvider) + ": device_id is the number of a GPU, not \"" + value + "\"");
    device = "gpu:" + value;
  }
  if (!options.device.empty() && options.device != device && !(device == "gpu" && options.device.starts_with("gpu:")))
    throw Error(ErrorCode::invalid_argument,
                std::string(kVulkanProvider) + " is " + device + ", and the options name the device " + options.device + " already");
  if (options.device.empty()) options.device = device;
}

}  // namespace treadle::ort
