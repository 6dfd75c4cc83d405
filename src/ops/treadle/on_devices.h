// Nodes that only devices with kernels of their own can compute.
#pragma once

#include <fmt/format.h>

#include "graph/kernel.h"
#include "treadle/error.h"

namespace treadle::ops {

/// The host's kernel of an operator that only devices compute. It only reports an error. The host uses it if a model that was compiled for
/// a device is run in a session on the host.
struct OnDevicesOnly {
  static OnDevicesOnly bind(BindContext& c) {
    throw Error(ErrorCode::not_implemented, fmt::format("only a device that has {} for these types computes it", c.node().op_type));
  }
  void run(RunContext&) const {}
};
inline constexpr std::string_view kOnDevicesOnly = "on devices";
inline KernelDef on_devices_only() { return kernel<OnDevicesOnly>(kOnDevicesOnly); }

}  // namespace treadle::ops
