// Counts heap allocations of the calling thread, through the replaced operator new of the test program.
#pragma once

#include <cstdint>

namespace treadle::testing {

/// Allocations by this thread since it started; 0 under the sanitizers.
int64_t num_allocations();

}  // namespace treadle::testing
