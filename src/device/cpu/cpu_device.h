// The host as a device: work runs at once, on the thread that enqueues it.
#pragma once

#include "core/device.h"

namespace treadle {

/// One for the process.
const std::shared_ptr<Device>& cpu_device();

}  // namespace treadle
