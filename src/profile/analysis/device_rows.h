// Gives each stream of a device (such as a GPU) its own row in a trace.
#pragma once

#include "profile/model/trace.h"

namespace treadle::profile {

/// Suffix of row names for devices that do not report when work ran. Their rows show when the host launched the work.
inline constexpr const char* kTimesOfLaunches = " (times of launches)";

/// Adds a row for the work of each stream. If no thread belongs to the stream, the thread that waits for the work has recorded it; these
/// records are moved from that thread's row to the new one.
void add_device_rows(ProfileTrace& trace);

}  // namespace treadle::profile
