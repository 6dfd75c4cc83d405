// Counts heap allocations of the calling thread, and lets chosen ones fail, through the replaced operator new of the test program.
#pragma once

#include <cstdint>

namespace treadle::testing {

/// Allocations by this thread since it started; 0 under the sanitizers.
int64_t num_allocations();

/// While it lives, operator new throws std::bad_alloc in any thread: at allocation `first` (from 0 on), and at all later ones if `all`.
/// Does nothing under the sanitizers.
class FailingNew {
 public:
  FailingNew(int64_t first, bool all);
  ~FailingNew();
  FailingNew(const FailingNew&) = delete;
  FailingNew& operator=(const FailingNew&) = delete;
};

}  // namespace treadle::testing
