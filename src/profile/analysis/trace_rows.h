// The form of a recording from which all trace formats are written: the records of each thread as rows of nested ranges, outer ones first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/trace/recorder.h"
#include "profile/model/trace.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// A recording, and the nodes that its records refer to; `nodes` may be null.
struct TraceView {
  const Recording* recording;
  const std::vector<ProfiledNode>* nodes = nullptr;
  const std::unordered_map<uint32_t, int32_t>* node_of = nullptr;
  uint64_t first_ticks = 0;
  const Recording::Thread* load = nullptr;                     ///< a row that follows those of the threads; null: none
  bool launches = false;                                       ///< include launches by the host
  bool pool_runs = false;                                      ///< add ranges around the work of pool threads
  const std::vector<std::vector<uint32_t>>* layers = nullptr;  ///< see ProfileTrace::layers; adds ranges around nodes of a layer

  const DeviceRows* device_rows = nullptr;

  const std::unordered_map<const Record*, int64_t>* waited = nullptr;  ///< see ProfileTrace::waited_ns

  /// Returns how long a node was ready before it began; 0: less than a microsecond, or unknown.
  int64_t waited_ns(const Record& record) const {
    if (!waited || waited->empty()) return 0;
    const auto found = waited->find(&record);
    return found == waited->end() ? 0 : found->second;
  }
  /// Returns the index of the record's node; -1 if the record belongs to no known node.
  int32_t node_index(const Record& record) const;
  const std::string& name(const Record& record) const;
  bool shows(const Record& record) const;
};

/// Makes a view of a profile. @throws Error(invalid_argument) for a profile without records: one that was built by hand or read from a file
TraceView view_of(const Profile& profile);

struct TraceSpan {
  int64_t start_ns, end_ns;  ///< in ns since the recorder was created
  const Record* record;
};

/// Orders ranges of a row by start; of ranges with the same start, outer ones come first.
bool is_outer(const TraceSpan& a, const TraceSpan& b);

/// Assigns numbers to pairs of a launch on the host and the device's activity that it started.
class Correlations {
 public:
  explicit Correlations(const TraceView& view);
  /// Returns the number (from 1) that a launch shares with its activity; 0: the record is neither.
  int64_t of(const Record& record) const;
  /// Returns the activity of a launch; null if it was not recorded.
  const Record* activity(int64_t number) const;
  int64_t size() const { return static_cast<int64_t>(activities_.size()); }

 private:
  std::unordered_map<const Record*, int64_t> numbers_;
  std::vector<const Record*> activities_;  // the activity with number n is at index n - 1
};

/// Arrows from the outputs of forward nodes to the backward nodes of the same run that read them.
class GradientArrows {
 public:
  /// @param first_id  number of the first arrow
  GradientArrows(const TraceView& view, int64_t first_id);
  /// Return the numbers of the arrows that begin at a record, and of those that end there.
  const std::vector<int64_t>& from(const Record& record) const { return found(begins_, record); }
  const std::vector<int64_t>& to(const Record& record) const { return found(ends_, record); }
  /// Returns the row (TraceRow::id) of the forward node's thread; -1: the record is not of a backward node.
  int64_t forward_thread(const Record& record) const;

 private:
  using Numbers = std::unordered_map<const Record*, std::vector<int64_t>>;
  static const std::vector<int64_t>& found(const Numbers& numbers, const Record& record);

  Numbers begins_, ends_;
  std::unordered_map<const Record*, int64_t> threads_;
};

inline constexpr int64_t kMaxRowsOfThread = 100;

/// Returns the thread's name with its number in the system. Streams of devices have a negative number, which is not shown.
std::string title_of(const Recording::Thread& thread);

/// A row of a viewer. Viewers drop ranges that overlap without nesting, so such ranges are in another row of the same thread.
struct TraceRow {
  const Recording::Thread* thread = nullptr;
  int64_t number = 0;                                   ///< index among this thread's rows
  std::vector<TraceSpan> spans;                         ///< sorted by start, outer ones first
  std::shared_ptr<const std::vector<Record>> layers{};  ///< the records of layers that spans refer to

  /// Returns a number that is unique among all rows of the recording.
  int64_t id() const { return int64_t{thread->index} * kMaxRowsOfThread + std::min(number, kMaxRowsOfThread - 1); }
  std::string title() const;
};

inline bool is_of_memory(const Record& record) { return record.kind == RecordKind::memory || record.kind == RecordKind::out_of_memory; }
inline bool is_point(const Record& record) {
  return record.kind == RecordKind::instant || record.kind == RecordKind::counter || is_of_memory(record);
}

std::vector<TraceRow> rows_of(const TraceView& view);

/// Calls open(span) and close(span) in order of time, inner ranges within outer ones, and mark(span) for the program's marks. Skips other
/// points.
template <typename Open, typename Close, typename Mark>
void replay(const TraceRow& row, const Open& open, const Close& close, const Mark& mark) {
  std::vector<const TraceSpan*> stack;
  for (const TraceSpan& span : row.spans) {
    const bool is_mark = span.record->kind == RecordKind::instant;
    if (is_point(*span.record) && !is_mark) continue;
    for (; !stack.empty() && stack.back()->end_ns <= span.start_ns; stack.pop_back()) close(*stack.back());
    if (is_mark) {
      mark(span);
      continue;
    }
    open(span);
    stack.push_back(&span);
  }
  for (; !stack.empty(); stack.pop_back()) close(*stack.back());
}
template <typename Open, typename Close>
void replay(const TraceRow& row, const Open& open, const Close& close) {
  replay(row, open, close, [](const TraceSpan&) {});
}

}  // namespace treadle::profile
