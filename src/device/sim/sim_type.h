// Registers the simulated accelerator as a device type. The name "sim" stands for a new device for the session, "sim:NAME" for the
// process's device of that name.
#pragma once

namespace treadle {

/// Registers the device type. Only the first call has an effect.
void register_sim_type();

}  // namespace treadle
