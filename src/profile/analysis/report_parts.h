// Parts of the document of a profile.
#pragma once

#include <vector>

#include "profile/model/document.h"
#include "treadle/profile.h"

namespace treadle::profile {

double rounded(double value, double digits = 1e6);
double milliseconds(double ns);
/// Median with its interval, p10, p90, least and most. @param ns  not empty
Document summary_json(const std::vector<double>& ns);

/// Whether the peaks, which are of float32, hold for what a node computes.
bool computes_in_float32(const ProfiledNode& node);

/// Phases of loading: those of one name within one phase together.
Document load_json(const Profile& profile);
/// Threads of the pool: a part of their time for each state, which sum to 1.
Document pool_json(const Profile& profile);
/// Pairs of the profile's time and the wall clock's, and by how much the wall clock was set meanwhile.
Document clock_json(const Profile& profile);
/// Ranges that the program marked: calls, and the time of all of them.
Document ranges_json(const Profile& profile);
/// Moments that the program marked, by column: the first of them.
Document marks_json(const Profile& profile);
/// Where ranges and runs lie in the recording.
Document spans_json(const Profile& profile);
/// What was really allocated: over time, at its peak, and what there was no room for.
Document measured_memory_json(const MeasuredMemory& memory);

}  // namespace treadle::profile
