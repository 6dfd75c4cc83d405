// The kinds of devices that sessions may name.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"

namespace treadle {

class KernelTable;

/// What a session asks a device for.
struct DeviceRequest {
  std::string name;                                  ///< as the session wrote it: "sim", "sim:NAME"
  const std::map<std::string, std::string>& config;  ///< the session's entries
  std::span<const std::shared_ptr<Device>> beside;   ///< that the session has already, of any kind
};

struct DeviceType {
  std::string name;  ///< a session names "sim", or "sim:NAME" for one of several
  std::function<std::shared_ptr<Device>(const DeviceRequest&)> make;
  /// What stands for the host beside such devices; empty: the host itself, and no device of another type beside them.
  std::function<std::shared_ptr<Device>(const DeviceRequest&)> make_host;
  /// What the devices compute themselves (graph/kernel_table.h); null: the host's own kernels run on them.
  std::shared_ptr<const KernelTable> kernels;
};

/// A second type of a name serves sessions made afterwards. Thread-safe.
/// @throws Error(invalid_argument) for the name "cpu", an empty one, or one with a colon, comma, blank or equals sign.
void register_device_type(DeviceType type);
std::optional<DeviceType> find_device_type(std::string_view name);
std::vector<std::string> device_type_names();

}  // namespace treadle
