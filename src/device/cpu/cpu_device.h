// The host CPU as a device. Work runs immediately, on the thread that enqueues it.
#pragma once

#include "core/devices/device.h"

namespace treadle {

/// Returns the device for the host CPU, of which the process has only one.
const std::shared_ptr<Device>& cpu_device();

}  // namespace treadle
