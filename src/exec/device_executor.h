// What runs a program in the memory of devices other than the host.
#pragma once

#include <span>

#include "exec/frame.h"

namespace treadle::exec {

class DeviceExecutor {
 public:
  virtual ~DeviceExecutor() = default;
  /// As exec::run.
  virtual void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control,
                   std::span<const Datum> bound = {}) = 0;
};

}  // namespace treadle::exec
