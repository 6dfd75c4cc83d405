// The registry of device types, whose names sessions use to select devices.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/devices/device.h"

namespace treadle {

class KernelTable;

/// A session's request for a device.
struct DeviceRequest {
  std::string name;                                  ///< the name as in the session's options: "sim", "sim:NAME"
  const std::map<std::string, std::string>& config;  ///< the session's configuration entries
  std::span<const std::shared_ptr<Device>> beside;   ///< devices that the session already has, of any type
  std::string_view cache_dir = {};                   ///< folder in which the device keeps compiled code; empty: it keeps none
};

/// A device's highest rates, as measured.
struct DevicePeaks {
  double flops_per_second = 0;                              ///< float32 multiply-adds, each counted as two; 0: not known
  std::vector<std::pair<double, double>> bytes_per_second;  ///< for several sizes: (bytes touched, bytes read and written per second)
};

struct DeviceType {
  std::string name;  ///< name in session options: "sim", or "sim:NAME" for one of several
  std::function<std::shared_ptr<Device>(const DeviceRequest&)> make;
  /// Makes the host device of sessions that use devices of this type. Empty: they use the plain host, and cannot use other device types at
  /// the same time.
  std::function<std::shared_ptr<Device>(const DeviceRequest&)> make_host;
  /// Kernels of the device (graph/kernel_table.h); null: the device runs host kernels.
  std::shared_ptr<const KernelTable> kernels;
  /// For devices that have their own kernels: the operators of the treadle domain that these kernels compute. The optimizer makes no other
  /// operators of that domain for the device. If the list is empty, graphs are optimized at the level `basic`, otherwise at `extended`.
  std::vector<std::string> fused_operators = {};
  /// Measures a device of this type, for profiles. Empty: its rates are not known, and profiles do not compare its nodes with them.
  std::function<DevicePeaks(Device&)> measure_peaks = {};
};

/// Registers a type. A type registered later under the same name replaces it for later sessions. Thread-safe.
/// @throws Error(invalid_argument) if the name is "cpu", empty, or has a colon, comma, blank or equals sign
void register_device_type(DeviceType type);
std::optional<DeviceType> find_device_type(std::string_view name);
std::vector<std::string> device_type_names();

}  // namespace treadle
