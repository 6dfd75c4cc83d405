// Nodes that only devices with their own kernels compute.
#pragma once

#include <fmt/format.h>

#include "graph/kernel.h"
#include "treadle/error.h"

namespace treadle::ops {

/// The host's kernel of such a node. On the device, the device's kernel replaces it. It refuses to run: the host would execute it if a
/// model compiled for a device were run in a session on the host.
struct OnDevicesOnly {
  static OnDevicesOnly bind(BindContext& c) {
    throw Error(ErrorCode::not_implemented, fmt::format("only a device that has {} for these types computes it", c.node().op_type));
  }
  void run(RunContext&) const {}
};
inline constexpr std::string_view kOnDevicesOnly = "on devices";
inline KernelDef on_devices_only() { return kernel<OnDevicesOnly>(kOnDevicesOnly); }

}  // namespace treadle::ops
