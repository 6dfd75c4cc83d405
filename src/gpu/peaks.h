// Measures the peak rates of a GPU. Profiles compare the rates of nodes with them.
#pragma once

#include "core/devices/device_registry.h"

namespace treadle::gpu {

/// Measures two rates with the device's own clock: float32 multiply-adds in a loop of a shader, and copies within the device's memory.
/// This takes about 0.2 s. Returns empty rates if the device's clock cannot be read.
DevicePeaks measure_peaks(Device& device);

}  // namespace treadle::gpu
