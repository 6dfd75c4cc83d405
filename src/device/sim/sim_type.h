// Registers the simulated accelerator as a device type: "sim" is a new device of the session, "sim:NAME" the process's device of that name.
#pragma once

namespace treadle {

/// Registers it once, however often it is called.
void register_sim_type();

}  // namespace treadle
