// The host as a device: work runs at once, on the thread that enqueues it.
#pragma once

#include "core/devices/device.h"

namespace treadle {

/// Returns the host as a device; the process has only one.
const std::shared_ptr<Device>& cpu_device();

}  // namespace treadle
