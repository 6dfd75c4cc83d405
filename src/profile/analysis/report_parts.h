// Makes the parts of a profile's report.
#pragma once

#include <string>
#include <vector>

#include "profile/model/rounding.h"
#include "treadle/profile_report.h"

namespace treadle::profile {

std::string class_name(MemoryClass memory_class);
/// Summarizes times. @param ns  must not be empty
ProfileTimes times_of(const std::vector<double>& ns);

/// Returns true if the machine's peaks, which are measured in float32, apply to the node's computation.
bool computes_in_float32(const PlannedNode& node);

/// Returns "1x64x56x56", "scalar", or "?" for a shape that is known only in a run.
std::string shape_of(const ProfiledOperand& operand);
/// Formats the shapes of a node's computed inputs and outputs: "1x64x56x56 -> 1x64x28x28".
std::string shapes_of(const PlannedNode& node);

/// Returns the phases of loading; phases with the same name within one phase are merged.
std::vector<ProfileReport::Load> load_of(const Profile& profile);
std::vector<ProfileReport::PoolThread> pool_of(const Profile& profile);
/// Returns the clock's pairs of readings. @pre the profile has them
ProfileReport::Clock clock_of(const Profile& profile);
std::vector<ProfileReport::Range> ranges_of(const Profile& profile);
/// Returns the first marks, up to a limit.
ProfileReport::Marks marks_of(const Profile& profile);
/// Returns the positions of ranges and runs in the recording.
TimelineEvents spans_of(const Profile& profile);
MeasuredMemoryReport measured_memory_of(const MeasuredMemory& memory);

}  // namespace treadle::profile
