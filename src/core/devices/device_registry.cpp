#include "core/devices/device_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "treadle/error.h"

namespace treadle {
namespace {

struct Registered {
  std::mutex mutex;
  std::vector<DeviceType> types;
};

Registered& registered() {
  static auto* instance = new Registered;  // never destroyed: sessions may outlive static objects
  return *instance;
}

}  // namespace

void register_device_type(DeviceType type) {
  if (type.name.empty() || type.name == "cpu" || type.name.find_first_of(":, =;") != std::string::npos)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" is no name for a device: not cpu, no colons, commas, semicolons, equals signs or blanks", type.name));
  Registered& all = registered();
  std::lock_guard lock(all.mutex);
  auto same = std::find_if(all.types.begin(), all.types.end(), [&](const DeviceType& other) { return other.name == type.name; });
  if (same == all.types.end())
    all.types.push_back(std::move(type));
  else
    *same = std::move(type);
}

std::optional<DeviceType> find_device_type(std::string_view name) {
  Registered& all = registered();
  std::lock_guard lock(all.mutex);
  auto found = std::find_if(all.types.begin(), all.types.end(), [&](const DeviceType& type) { return type.name == name; });
  return found == all.types.end() ? std::nullopt : std::optional(*found);
}

std::vector<std::string> device_type_names() {
  Registered& all = registered();
  std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const DeviceType& type : all.types) names.push_back(type.name);
  return names;
}

}  // namespace treadle
