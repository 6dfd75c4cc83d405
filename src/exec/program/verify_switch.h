// A process-wide switch. If it is on, runs of all programs verify the plans that they follow.
#pragma once

namespace treadle::exec {

/// Returns whether programs made from now on verify their plans. By default they do in debug builds; the environment variable
/// TREADLE_VERIFY_PLANS (1 or 0) sets another default.
bool verifies_plans();
void set_verifies_plans(bool on);

}  // namespace treadle::exec
