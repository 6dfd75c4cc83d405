// Profilers of the C ABI.
#pragma once

#include "treadle/profile.h"
#include "treadle/treadle.h"

struct treadle_profiler {
  treadle::Profiler profiler;
};

namespace treadle::c_api {

/// @param options  of the version that the caller was built with; null: the defaults
ProfilerOptions profiler_options_of(const treadle_profiler_options* options);

}  // namespace treadle::c_api
