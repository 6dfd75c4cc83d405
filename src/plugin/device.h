// Devices that come from plugins, as the library's own kind of device.
#pragma once

#include "treadle/plugin.h"

namespace treadle::plugin {

/// @throws Error(invalid_argument) for what is missing or of another size.
void register_device(const treadle_device& device);

}  // namespace treadle::plugin
