// The form of a recording from which all trace formats are written: for each thread, rows of nested ranges, sorted by start.
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

/// A recording, the nodes that its records refer to (`nodes` may be null), and what a trace shall show.
struct TraceView {
  const Recording* recording;
  const std::vector<ProfiledNode>* nodes = nullptr;
  const std::unordered_map<uint32_t, int32_t>* node_of = nullptr;
  uint64_t first_ticks = 0;
  const Recording::Thread* load = nullptr;                     ///< the phases of loading, shown as the last row; null: none
  bool launches = false;                                       ///< include launches by the host
  bool pool_runs = false;                                      ///< include the ranges in which threads of the pool computed
  const std::vector<std::vector<uint32_t>>* layers = nullptr;  ///< as ProfileTrace::layers; adds ranges around layers

  const DeviceRows* device_rows = nullptr;

  const std::unordered_map<const Record*, int64_t>* waited = nullptr;  ///< ns from ready operands to a node's start; null: unknown

  /// Returns how long a node's operands were ready before the node began, in ns; 0 if this is less than a microsecond or unknown.
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

/// Makes a view of a profile. @throws Error(invalid_argument) for a profile without records, such as one that was read from a JSON file
TraceView view_of(const Profile& profile);

struct TraceSpan {
  int64_t start_ns, end_ns;  ///< in ns since the recorder was created
  const Record* record;
};

/// Returns true if `a` comes before `b` in a row: it starts earlier, or at the same time and encloses `b`.
bool is_outer(const TraceSpan& a, const TraceSpan& b);

/// Assigns a number to each pair of a launch on the host and the activity on a device that this launch started.
class Correlations {
 public:
  explicit Correlations(const TraceView& view);
  /// Returns the number, from 1, of the pair that a record belongs to; 0 if the record belongs to none.
  int64_t of(const Record& record) const;
  /// Returns the activity of the pair with this number; null for 0.
  const Record* activity(int64_t number) const;
  int64_t size() const { return static_cast<int64_t>(activities_.size()); }

 private:
  std::unordered_map<const Record*, int64_t> numbers_;
  std::vector<const Record*> activities_;  // the activity with number n is at index n - 1
};

/// Arrows from forward nodes to the backward nodes that differentiate them, for trace viewers.
class GradientArrows {
 public:
  /// @param first_id  the number that the first arrow gets; the next arrows get the following numbers
  GradientArrows(const TraceView& view, int64_t first_id);
  /// from() returns the numbers of the arrows that begin at a record, and to() those of the arrows that end at it.
  const std::vector<int64_t>& from(const Record& record) const { return found(begins_, record); }
  const std::vector<int64_t>& to(const Record& record) const { return found(ends_, record); }
  /// Returns the row (TraceRow::id) in which the forward node of a backward node ran; -1 for records of other nodes.
  int64_t forward_thread(const Record& record) const;

 private:
  using Numbers = std::unordered_map<const Record*, std::vector<int64_t>>;
  static const std::vector<int64_t>& found(const Numbers& numbers, const Record& record);

  Numbers begins_, ends_;
  std::unordered_map<const Record*, int64_t> threads_;
};

inline constexpr int64_t kMaxRowsOfThread = 100;

/// Returns the thread's name followed by its system thread id. The negative ids of device streams are not shown.
std::string title_of(const Recording::Thread& thread);

/// A row in a trace viewer. Viewers drop ranges that overlap without nesting, so a thread with such ranges has several rows.
struct TraceRow {
  const Recording::Thread* thread = nullptr;
  int64_t number = 0;                                   ///< index among the rows of this thread
  std::vector<TraceSpan> spans;                         ///< sorted by start, outer ones first
  std::shared_ptr<const std::vector<Record>> layers{};  ///< keeps alive the records of layers to which spans refer

  /// Returns a number that is unique among all rows of the recording.
  int64_t id() const { return int64_t{thread->index} * kMaxRowsOfThread + std::min(number, kMaxRowsOfThread - 1); }
  std::string title() const;
};

inline bool is_of_memory(const Record& record) { return record.kind == RecordKind::memory || record.kind == RecordKind::out_of_memory; }
inline bool is_point(const Record& record) {
  return record.kind == RecordKind::instant || record.kind == RecordKind::counter || is_of_memory(record);
}

std::vector<TraceRow> rows_of(const TraceView& view);

/// Calls open(span) and close(span) for each range in order of time, inner ranges within outer ones. Calls mark(span) for points that the
/// program has marked, and skips other points.
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
