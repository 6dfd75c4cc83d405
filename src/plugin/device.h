// Registers devices that plugins implement.
#pragma once

#include "treadle/plugin.h"

namespace treadle::plugin {

/// Registers a device. @throws Error(invalid_argument) for a missing function or an unknown size of the struct.
void register_device(const treadle_device& device);

}  // namespace treadle::plugin
