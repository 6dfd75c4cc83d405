// A process-wide switch: runs of all programs verify the plans that they follow.
#pragma once

namespace treadle::exec {

/// Holds for programs made from now on. The default is on in debug builds, and if the environment has TREADLE_VERIFY_PLANS=1.
bool verifies_plans();
void set_verifies_plans(bool on);

}  // namespace treadle::exec
