// Selects the records of one profile from what all threads wrote.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/trace/recorder.h"

namespace treadle {

/// The records that a profile wants.
struct RecordFilter {
  uint64_t from = 0;                             ///< in ticks: records that begin earlier are left out
  std::unordered_map<uint32_t, uint32_t> names;  ///< maps reserved names to indices in `texts`; records with other ones are left out
  std::vector<RecordName> texts;                 ///< names with which the result's name table begins
  uint64_t account = 0;                          ///< address of the MemoryAccount whose blocks are wanted; 0: none
  bool kernel_phases = false;                    ///< true: also phases of kernels, and the threads that they run on
  bool python_calls = false;
};

/// Calls take(record) for each record in the events.
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

/// Selects a profile's records, thread by thread.
class RecordPicker {
 public:
  /// @param interned   names that are not reserved, by id
  /// @param recording  receives the names in use and the count of unknown records
  RecordPicker(const RecordFilter& filter, const std::vector<RecordName>& interned, Recording& recording)
      : filter_(filter), interned_(interned), recording_(recording) {}
  void take(Record record, Recording::Thread& thread);
  /// Closes each range that is still open: at the end of the innermost range or run around the range on its thread, otherwise at `until` or
  /// at the thread's last record. @pre the threads are those of the recording
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
  std::vector<uint64_t> strangers_;        // begins of nodes whose names are not in the filter
  std::vector<std::vector<Record>> open_;  // for each thread, its open ranges, ascending
};

}  // namespace treadle
