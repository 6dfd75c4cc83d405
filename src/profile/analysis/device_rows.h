// Rows for the streams of devices.
#pragma once

#include "profile/model/trace.h"

namespace treadle::profile {

/// Ends the names of rows whose devices do not tell times.
inline constexpr const char* kTimesOfLaunches = " (times of launches)";

/// Gives the work of each stream a row named after it. A device that is no thread of its own tells the times of its work later, to whoever
/// waits for it; those records are taken out of that thread's row.
void add_device_rows(ProfileTrace& trace);

}  // namespace treadle::profile
