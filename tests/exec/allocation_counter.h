// Counts heap allocations of the calling thread, and lets chosen ones fail, through the replaced operator new of the test program.
#pragma once

#include <cstdint>

namespace treadle::testing {

/// Allocations by this thread since it started; 0 under the sanitizers.
int64_t num_allocations();

/// As long as an object of this class lives, operator new throws std::bad_alloc in all threads: at allocation `first` (from 0 on), and at
/// all later ones if `all`. The class does nothing in builds with sanitizers.
class FailingNew {
 public:
  FailingNew(int64_t first, bool all);
  ~FailingNew();
  FailingNew(const FailingNew&) = delete;
  FailingNew& operator=(const FailingNew&) = delete;
};

}  // namespace treadle::testing
