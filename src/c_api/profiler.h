// Checks and converts the profiler options of the C ABI.
#pragma once

#include "c_api/arguments.h"
#include "treadle/profile.h"
#include "treadle/treadle.h"

struct treadle_profiler : treadle::c_api::Handle<treadle_profiler> {
  treadle::Profiler profiler;
};

namespace treadle::c_api {

/// Checks the options. They may be NULL, or a struct of an older version with which the caller was compiled.
Argument profiler_options(const treadle_profiler_options* options) noexcept;
/// Converts the options; NULL means the defaults.
ProfilerOptions profiler_options_of(const treadle_profiler_options* options);

}  // namespace treadle::c_api
