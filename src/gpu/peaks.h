// Measures the peak rates of a GPU, with which profiles compare nodes.
#pragma once

#include "core/devices/device_registry.h"

namespace treadle::gpu {

/// Measures with the device's own clock: float32 multiply-adds in a loop of a shader, and copies within the device's memory.
/// Takes about 0.2 s. Empty rates if the device's clock cannot be read.
DevicePeaks measure_peaks(Device& device);

}  // namespace treadle::gpu
