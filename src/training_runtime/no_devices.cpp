// Devices of a library that has the host alone, and what plugins bring.
#include "device/sim/sim_type.h"

namespace treadle {

void register_sim_type() {}

}  // namespace treadle
