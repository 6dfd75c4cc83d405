// Runs the body of a Loop or Scan round after round, without waiting for a round before the next is issued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/placed/placed_run.h"

namespace treadle::exec {

/// A few runs of the body, which take turns. Events order all steps of a round behind those of the round before. So rounds share arenas,
/// and only the values that a round hands to the next one need more memory. The host waits for a round
///
/// - if it reads what the round's devices compute: a condition, an operand of a node on the host, an extent;
/// - if so many later rounds were issued that no run is free;
/// - always, in a job, within memory limits, for observers, and if the body has control flow of its own.
class PlacedRounds {
 public:
  /// @param schedule  of the body; must outlive this object
  explicit PlacedRounds(PlacedSchedule& schedule);

  /// Issues one more round. Results on the host are complete. Those on devices may be in the making: only rounds may read them before
  /// finish(). The arguments are those of BodyRunner::run().
  void run(std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control, std::span<const int64_t> parent_values,
           size_t looked_at);
  /// Waits for all rounds. @throws the first error
  void finish();
  void clear() noexcept;
  /// Returns how many rounds were issued while an earlier one might have been under way.
  int64_t num_issued_ahead() const { return num_issued_ahead_; }

 private:
  bool waits_for_each(const RunControl& control) const;
  void free_arenas_but(const PlacedRun& run) const noexcept;

  PlacedSchedule& schedule_;
  const bool has_bodies_;
  std::vector<std::unique_ptr<PlacedRun>> runs_;
  size_t next_ = 0;            // index of the run that serves the next round
  size_t under_way_ = 0;       // number of the runs before `next_` that may be under way
  PlacedRun* last_ = nullptr;  // the run of the last round; null before the first
  int64_t num_issued_ahead_ = 0;
};

}  // namespace treadle::exec
