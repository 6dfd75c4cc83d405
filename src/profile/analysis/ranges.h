// Ranges that programs mark, together with the runs in them.
#pragma once

#include "profile/analysis/trace_rows.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// Sets the profile's ranges, with calls of the same name and the same surrounding ranges merged, and the spans for a timeline of them.
/// @pre the profile has its runs
void add_ranges(const ProfileTrace& trace, Profile& profile);
/// Sets Profile::marks.
void add_marks(const ProfileTrace& trace, Profile& profile);

}  // namespace treadle::profile
