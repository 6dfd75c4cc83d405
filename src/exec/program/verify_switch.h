// A process-wide switch. If it is on, runs of all programs verify the memory plans that they follow.
#pragma once

namespace treadle::exec {

/// Returns true if programs made from now on verify their plans. By default, debug builds do; the environment variable TREADLE_VERIFY_PLANS
/// (1 or 0) overrides this.
bool verifies_plans();
void set_verifies_plans(bool on);

}  // namespace treadle::exec
