// Makes rows of a trace for the streams of devices.
#pragma once

#include "profile/model/trace.h"

namespace treadle::profile {

/// Suffix of the names of rows for devices that do not report times.
inline constexpr const char* kTimesOfLaunches = " (times of launches)";

/// Adds a row for the work of each stream. Work of a device without its own thread is recorded later, by the thread that waits for it;
/// these records are removed from that thread's row.
void add_device_rows(ProfileTrace& trace);

}  // namespace treadle::profile
