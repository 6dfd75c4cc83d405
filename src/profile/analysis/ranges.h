// Adds to a profile the ranges and points that the program has marked, together with the runs in these ranges.
#pragma once

#include "profile/analysis/trace_rows.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// Sets Profile::ranges and Profile::spans. Calls with the same name and the same surrounding ranges are merged into one range.
/// @pre the profile has its runs
void add_ranges(const ProfileTrace& trace, Profile& profile);
/// Sets Profile::marks to the points that the program has marked.
void add_marks(const ProfileTrace& trace, Profile& profile);

}  // namespace treadle::profile
