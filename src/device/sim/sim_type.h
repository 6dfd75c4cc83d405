// Registers the simulated accelerator as a device type. "sim" is a new device for the session; "sim:NAME" is the process's device of that
// name.
#pragma once

namespace treadle {

/// Registers the type; only the first call has an effect.
void register_sim_type();

}  // namespace treadle
