// The run-time half of Highway's dispatch. Debian ships it only as a shared library, which an installed libtreadle must not depend on. So
// the two functions that the headers call are defined here, using our own CPU detection.
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdlib>

#include "core/base/cpu_info.h"

namespace hwy {

int64_t SupportedTargets() {
  const treadle::CpuFeatures& features = treadle::cpu_info().features;
  int64_t targets = HWY_SCALAR | HWY_EMU128;
  if (features.neon) targets |= HWY_NEON;
  if (features.avx2) targets |= HWY_AVX2;
  if (features.avx2 && features.avx512) targets |= HWY_AVX3;
  return targets & HWY_TARGETS;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

#if HWY_IS_DEBUG_BUILD  // for assertions in Highway's headers, in debug and sanitizer builds
void Abort(const char*, int, const char*, ...) { std::abort(); }
#endif

}  // namespace hwy
