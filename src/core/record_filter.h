// From what threads wrote to the records of one profile.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/recorder.h"

namespace treadle {

/// What a profile wants of all that the process records.
struct RecordFilter {
  uint64_t from = 0;                             ///< ticks: what began before is left out
  std::unordered_map<uint32_t, uint32_t> names;  ///< from a reserved name to its index in `texts`; others are left out
  std::vector<RecordName> texts;                 ///< texts of the result begin with these
  uint64_t account = 0;                          ///< the MemoryAccount whose blocks of memory are wanted, as a number; 0: none
  bool kernel_phases = false;                    ///< what kernels do, and on which threads
  bool python_calls = false;
};

/// Calls take(record) for each record of some events.
template <typename Take>
void each_record(std::span<const RecordEvent> events, const Take& take) {
  for (size_t i = 0; i < events.size(); ++i) {
    const RecordEvent& event = events[i];
    Record record{event.start, event.end, 0, 0, event.name, event.kind, event.run};
    if (event.has_arguments && i + 1 < events.size()) {
      const RecordEvent& arguments = events[++i];
      record.arg0 = static_cast<int64_t>(arguments.start), record.arg1 = static_cast<int64_t>(arguments.end);
    } else if (event.kind == RecordKind::phase) {
      record.arg0 = event.name, record.arg1 = event.phase;
    } else if (event.kind == RecordKind::begin) {
      record.arg0 = event.phase;
    }
    take(record);
  }
}

/// Picks a profile's records out of all, thread by thread.
class RecordPicker {
 public:
  /// @param interned   names that are not reserved, by their ids
  /// @param recording  gets the names that are met, and the count of unknown records
  RecordPicker(const RecordFilter& filter, const std::vector<RecordName>& interned, Recording& recording)
      : filter_(filter), interned_(interned), recording_(recording) {}
  void take(Record record, Recording::Thread& thread);
  /// Ranges that began and have no end end with the innermost range or run around them on their thread, or else now: at `until`, or with
  /// the last record of the thread. @pre the threads are those of the recording
  void end_open_ranges(uint64_t until);

 private:
  std::optional<uint32_t> name_of(uint32_t name);
  uint32_t phase_name(KernelPhase phase);
  uint32_t unnamed();
  void close_open(const Record& ended, uint32_t thread);
  void drop_ended_elsewhere();
  void drop_unnamed_ended_elsewhere();

  const RecordFilter& filter_;
  const std::vector<RecordName>& interned_;
  Recording& recording_;
  std::unordered_map<uint32_t, uint32_t> interned_names_;
  std::array<std::optional<uint32_t>, kNumKernelPhases> phase_names_;
  std::optional<uint32_t> unnamed_;
  uint32_t thread_ = 0;
  std::vector<uint64_t> strangers_;        // starts of nodes that the filter does not name
  std::vector<std::vector<Record>> open_;  // by thread: ranges that have begun there, ascending
};

}  // namespace treadle
