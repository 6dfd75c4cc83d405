// Adds to a profile the streams of devices on which its nodes run.
#pragma once

#include "exec/run/executor.h"
#include "profile/model/plan.h"

namespace treadle {

/// Adds rows for the streams of devices that the executor uses. @pre the plan has the executor's nodes and copies
void add_device_rows(const exec::Executor& executor, profile::ProfilePlan& plan);

}  // namespace treadle
