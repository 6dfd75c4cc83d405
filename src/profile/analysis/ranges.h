// Ranges that programs mark, and runs among them.
#pragma once

#include "profile/analysis/trace_rows.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// Sets the profile's ranges, all calls with the same ranges around them together, and the spans that a timeline of them shows.
/// @pre the profile has its runs
void add_ranges(const ProfileTrace& trace, Profile& profile);
/// Fills Profile::marks.
void add_marks(const ProfileTrace& trace, Profile& profile);

}  // namespace treadle::profile
