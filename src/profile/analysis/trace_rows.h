// What all trace files have in common: the records of each thread as rows of ranges that nest, outer ones first.
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

/// A recording, and what is known of its nodes: nothing where `nodes` is null.
struct TraceView {
  const Recording* recording;
  const std::vector<ProfiledNode>* nodes = nullptr;
  const std::unordered_map<uint32_t, int32_t>* node_of = nullptr;
  uint64_t first_ticks = 0;
  const Recording::Thread* load = nullptr;                     ///< a row behind those of the threads; null: none
  bool launches = false;                                       ///< rows have what the host gave to devices
  bool pool_runs = false;                                      ///< rows have ranges around what threads of the pool run
  const std::vector<std::vector<uint32_t>>* layers = nullptr;  ///< as ProfileTrace::layers: rows have ranges around the nodes of a layer

  const std::unordered_map<const Record*, int64_t>* waited = nullptr;  ///< as ProfileTrace::waited_ns

  /// How long a node was ready before it began; 0: less than a microsecond, or not known.
  int64_t waited_ns(const Record& record) const {
    if (!waited || waited->empty()) return 0;
    const auto found = waited->find(&record);
    return found == waited->end() ? 0 : found->second;
  }
  /// -1 if the record is of no known node.
  int32_t node_index(const Record& record) const;
  const std::string& name(const Record& record) const;
  bool shows(const Record& record) const;
};

/// @throws Error(invalid_argument) if the profile holds no records: one that was built by hand, or read from a file
TraceView view_of(const Profile& profile);

struct TraceSpan {
  int64_t start_ns, end_ns;  ///< since the recorder was made
  const Record* record;
};

/// Of two ranges of a row: the one that starts first, or is around the other.
bool is_outer(const TraceSpan& a, const TraceSpan& b);

/// Numbers of what devices did, and of the launches on the host that it comes from.
class Correlations {
 public:
  explicit Correlations(const TraceView& view);
  /// The same for a launch and what came of it, from 1 on; 0: the record is of neither.
  int64_t of(const Record& record) const;
  /// What came of a launch. Null if that is not in the recording.
  const Record* activity(int64_t number) const;
  int64_t size() const { return static_cast<int64_t>(activities_.size()); }

 private:
  std::unordered_map<const Record*, int64_t> numbers_;
  std::vector<const Record*> activities_;  // by number - 1
};

/// Arrows from what forward nodes did to the backward nodes of the same run.
class GradientArrows {
 public:
  /// @param first_id  arrows are numbered from here on
  GradientArrows(const TraceView& view, int64_t first_id);
  /// Numbers of the arrows that begin, and that end, at a record.
  const std::vector<int64_t>& from(const Record& record) const { return found(begins_, record); }
  const std::vector<int64_t>& to(const Record& record) const { return found(ends_, record); }
  /// The number (TraceRow::id) of the thread that the forward node ran on; -1: the record is of no backward node.
  int64_t forward_thread(const Record& record) const;

 private:
  using Numbers = std::unordered_map<const Record*, std::vector<int64_t>>;
  static const std::vector<int64_t>& found(const Numbers& numbers, const Record& record);

  Numbers begins_, ends_;
  std::unordered_map<const Record*, int64_t> threads_;
};

inline constexpr int64_t kMaxRowsOfThread = 100;

/// A row of a viewer. Ranges of one thread that overlap without nesting, which viewers would drop, go to a further row of that thread.
struct TraceRow {
  const Recording::Thread* thread = nullptr;
  int64_t number = 0;                                   ///< of this thread's rows
  std::vector<TraceSpan> spans;                         ///< by start, an outer one before the inner ones that start with it
  std::shared_ptr<const std::vector<Record>> layers{};  ///< what spans of layers refer to

  /// Differs from all other rows of the recording.
  int64_t id() const { return int64_t{thread->index} * kMaxRowsOfThread + std::min(number, kMaxRowsOfThread - 1); }
  std::string title() const;
};

inline bool is_of_memory(const Record& record) { return record.kind == RecordKind::memory || record.kind == RecordKind::out_of_memory; }
inline bool is_point(const Record& record) {
  return record.kind == RecordKind::instant || record.kind == RecordKind::counter || is_of_memory(record);
}

std::vector<TraceRow> rows_of(const TraceView& view);

/// Calls open(span) and close(span) in the order of time, inner ranges within outer ones, and mark(span) for what the program marked. Other
/// points are left out.
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
