// The host as a device: work runs at once, on the thread that enqueues it.
#pragma once

#include "core/devices/device.h"

namespace treadle {

/// The only one of the process.
const std::shared_ptr<Device>& cpu_device();

}  // namespace treadle
