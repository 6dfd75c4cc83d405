// Parts of what a profile says.
#pragma once

#include <string>
#include <vector>

#include "profile/model/rounding.h"
#include "treadle/profile_report.h"

namespace treadle::profile {

std::string class_name(MemoryClass memory_class);
/// @param ns  not empty
ProfileTimes times_of(const std::vector<double>& ns);

/// Whether the peaks, which are of float32, hold for what a node computes.
bool computes_in_float32(const PlannedNode& node);

/// "1x64x56x56"; "scalar"; "?" where only the run knows it.
std::string shape_of(const ProfiledOperand& operand);
/// "1x64x56x56 -> 1x64x28x28": computed inputs and outputs of a node, for people.
std::string shapes_of(const PlannedNode& node);

/// Phases of loading: those of one name within one phase together.
std::vector<ProfileReport::Load> load_of(const Profile& profile);
std::vector<ProfileReport::PoolThread> pool_of(const Profile& profile);
/// @pre the profile has pairs of clocks
ProfileReport::Clock clock_of(const Profile& profile);
std::vector<ProfileReport::Range> ranges_of(const Profile& profile);
/// The first of them.
ProfileReport::Marks marks_of(const Profile& profile);
/// Where ranges and runs lie in the recording.
TimelineEvents spans_of(const Profile& profile);
MeasuredMemoryReport measured_memory_of(const MeasuredMemory& memory);

}  // namespace treadle::profile
