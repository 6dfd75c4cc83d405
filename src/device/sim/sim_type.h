// The simulated accelerator among the types of devices: "sim" is a new one for the session, "sim:NAME" the process's of that name.
#pragma once

namespace treadle {

/// Once, however often it is called.
void register_sim_type();

}  // namespace treadle
