// Records what the threads of a pool do and wait for, for all open profiles.
#pragma once

#include <cstdint>

#include "core/trace/recorder.h"

namespace treadle {

/// Returns the time in ticks of read_ticks(); 0: no profile is open.
inline uint64_t pool_state_clock() noexcept { return RecordWindow::any() ? read_ticks() : 0; }

/// Records a state of the calling thread. Does nothing if either time is 0.
void record_pool_state(PoolState state, uint64_t start, uint64_t end) noexcept;

/// Records `state` in open profiles until the end of the block.
class PoolStateScope {
 public:
  explicit PoolStateScope(PoolState state) noexcept : state_(state), start_(pool_state_clock()) {}
  ~PoolStateScope() {
    if (start_ != 0) record_pool_state(state_, start_, pool_state_clock());
  }
  PoolStateScope(const PoolStateScope&) = delete;
  PoolStateScope& operator=(const PoolStateScope&) = delete;

 private:
  const PoolState state_;
  const uint64_t start_;
};

}  // namespace treadle
