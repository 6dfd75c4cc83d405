// Whether runs of all programs prove the plans that they follow.
#pragma once

namespace treadle::exec {

/// For programs that are made from now on. It is on in debug builds, and where the environment has TREADLE_VERIFY_PLANS=1.
bool verifies_plans();
void set_verifies_plans(bool on);

}  // namespace treadle::exec
