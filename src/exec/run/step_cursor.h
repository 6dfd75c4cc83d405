// Tracks how many steps of a run are done, and how far it may go.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "exec/run/feed_binder.h"

namespace treadle::exec {

/// Steps are numbered in the order of execution. A run stops before a step that reads an input that has not been fed yet.
class StepCursor {
 public:
  explicit StepCursor(size_t num_steps) : end_(num_steps) {}
  /// Called at the start of a run. All inputs count as fed unless find_starved() finds a missing one.
  void begin() { *this = StepCursor(end_); }
  /// The next step. All steps before it have run.
  size_t next() const { return next_; }
  size_t end() const { return end_; }
  bool finished() const { return next_ == end_; }
  void go_to(size_t step) { next_ = step; }

  /// Finds the first step for which lacks_feed(step) is true. Called when a run begins and whenever an input is fed.
  template <typename LacksFeed>
  void find_starved(LacksFeed&& lacks_feed) {
    starved_ = next_;
    is_told_ = false;
    while (starved_ < end_ && !lacks_feed(starved_)) ++starved_;
  }
  /// The number of steps that can run before a step that lacks a feed, or before one for which is_yield(step) is true.
  template <typename IsYield>
  size_t steps_left(IsYield&& is_yield) const {
    size_t stop = next_;
    while (stop < std::min(starved_, end_) && !is_yield(stop)) ++stop;
    return stop - next_;
  }
  /// Implements Run::advance(). walk(end) runs the steps up to `end`, or fewer, and moves the cursor.
  /// @return true at the end of the run
  /// @throws Error(invalid_argument) naming a missing input if the previous call already stopped at this step; errors of walk().
  template <typename Walk>
  bool advance(size_t steps, const RunState& state, Walk&& walk) {
    if (next_ == starved_ && !finished() && steps > 0) {
      if (std::exchange(is_told_, true)) FeedBinder::refuse_missing(state);
      return false;
    }
    walk(std::min(starved_, next_ + std::min(steps, end_ - next_)));
    if (steps > 0 && next_ == starved_) is_told_ = true;
    return finished();
  }

 private:
  size_t next_ = 0, end_;
  size_t starved_ = SIZE_MAX;  // first step whose input has not been fed
  bool is_told_ = false;       // true if advance() has returned false at `starved_`; calling it again is an error
};

}  // namespace treadle::exec
