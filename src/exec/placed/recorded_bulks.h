// Keeps work that devices have recorded for a run, so that later runs need not issue it node by node.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "exec/placed/placed_memory.h"
#include "exec/placed/placed_steps.h"
#include "exec/placed/placed_values.h"
#include "exec/run/node_runner.h"

namespace treadle::exec {

/// A bulk is a sequence of steps that is issued as one piece of work (PlacedSteps::bulk_from). This object belongs to one PlacedRun, whose
/// streams have recorded the work. Recorded work contains fixed addresses and extents. So it can be submitted again only if the binding is
/// the same and all its values have the same addresses as when it was recorded. Values in arenas keep their addresses. Inputs and outputs
/// usually keep theirs too, because each run allocates the same blocks in the same order. If an address differs, the bulk is issued step by
/// step and recorded again.
class RecordedBulks {
 public:
  /// All arguments must outlive this object, and this object must not outlive the streams.
  RecordedBulks(const PlacedMemory& memory, PlacedValues& values, const NodeRunner& nodes);

  /// Returns true if the bulk may be recorded on the stream in this run.
  bool may_record(std::span<const StepId> bulk, const Stream& queue);
  /// Submits the recorded work of the bulk again. Returns false if no record matches the present addresses and extents. @pre may_record()
  bool submit_again(std::span<const StepId> bulk, Stream& queue);
  /// Records the work that `issue` enqueues. @pre submit_again() has returned false for the bulk
  /// @param issue  returns false if it has not enqueued all of the work
  template <typename Issue>
  void record(std::span<const StepId> bulk, Stream& queue, Issue&& issue) {
    queue.begin_recorded();
    bool is_complete = false;
    try {
      is_complete = issue();
    } catch (...) {
      queue.end_recorded();
      throw;
    }
    std::unique_ptr<RecordedWork> work = queue.end_recorded();
    if (is_complete && work) keep(bulk, std::move(work));
  }
  void clear() noexcept { bulks_.clear(); }
  /// Returns the number of times that recorded work was submitted again.
  int64_t num_submitted_again() const { return num_submitted_again_; }

 private:
  /// The facts on which recorded work depends.
  struct Key {
    uint64_t binding = 0, arenas = 0;    // generations of the binding and of the arenas
    std::vector<const void*> addresses;  // addresses of the locations in Bulk::outside
    bool operator==(const Key&) const = default;
  };
  struct Record {
    Key key;
    std::unique_ptr<RecordedWork> work;
  };
  struct Bulk {
    bool is_recordable = false;
    std::vector<LocationId> outside;  // locations outside of arenas that the bulk's kernels access
    std::vector<StepId> makers;       // steps that write one of these locations
    std::list<Record> records;        // most recently used record first
  };
  static constexpr size_t kMostRecords = 4;  // maximum number of records of a bulk; a state that alternates between two addresses needs two

  Bulk& bulk_of(std::span<const StepId> bulk);
  bool is_recordable(const StreamPlan::Step& step) const;
  void look_at_memory(Bulk& bulk);
  void keep(std::span<const StepId> bulk, std::unique_ptr<RecordedWork> work);

  const PlacedSteps& steps_;
  const PlacedMemory& memory_;
  PlacedValues& values_;
  const NodeRunner& nodes_;
  std::unordered_map<StepId, Bulk> bulks_;  // bulks by their first step
  int64_t num_submitted_again_ = 0;
  Key now_;  // key of the bulk for which submit_again() was called last
};

}  // namespace treadle::exec
