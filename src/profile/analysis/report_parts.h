// Makes the parts of a profile's report.
#pragma once

#include <string>
#include <vector>

#include "profile/model/rounding.h"
#include "treadle/profile_report.h"

namespace treadle::profile {

std::string class_name(MemoryClass memory_class);
/// Returns median, quantiles and extremes of times. @param ns  must not be empty
ProfileTimes times_of(const std::vector<double>& ns);

/// Returns true if the machine's peaks, which are measured in float32, apply to the node's computation.
bool computes_in_float32(const PlannedNode& node);

/// Returns a text such as "1x64x56x56", "scalar", or "?" for a shape that is known only during a run.
std::string shape_of(const ProfiledOperand& operand);
/// Formats the shapes of a node's computed inputs and outputs: "1x64x56x56 -> 1x64x28x28".
std::string shapes_of(const PlannedNode& node);

/// Returns the phases of loading the model. Phases with the same name and the same parent are merged.
std::vector<ProfileReport::Load> load_of(const Profile& profile);
std::vector<ProfileReport::PoolThread> pool_of(const Profile& profile);
/// Returns pairs of readings that relate the profile's clock to the wall clock. @pre the profile has them
ProfileReport::Clock clock_of(const Profile& profile);
std::vector<ProfileReport::Range> ranges_of(const Profile& profile);
/// Returns the first of the program's marks, up to a limit.
ProfileReport::Marks marks_of(const Profile& profile);
/// Returns the times and threads of ranges and runs, for a timeline of the whole recording.
TimelineEvents spans_of(const Profile& profile);
MeasuredMemoryReport measured_memory_of(const MeasuredMemory& memory);

}  // namespace treadle::profile
