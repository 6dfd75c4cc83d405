#include "profile/analysis/ranges.h"

#include <algorithm>
#include <map>

namespace treadle::profile {
namespace {

bool is_marked(const Record& record) { return record.kind == RecordKind::user || record.kind == RecordKind::python; }

class RangeTree {
 public:
  RangeTree(const ProfileTrace& trace, Profile& profile) : trace_(trace), profile_(profile) {}

  void add(const TraceRow& row) {
    std::vector<int32_t> open;  // open ranges, outer ones first; -1 stands for a run
    replay(
        row,
        [&](const TraceSpan& span) {
          if (!counts(*span.record)) return;
          const bool is_run = span.record->kind == RecordKind::run;
          const int32_t around = innermost(open);
          const int32_t range = is_run ? -1 : range_of(around, *span.record);
          const auto duration = static_cast<double>(span.end_ns - span.start_ns);
          if (profile_.spans.size() < kMaxSpans)
            profile_.spans.push_back({range, static_cast<int32_t>(row.thread->index), static_cast<double>(span.start_ns), duration});
          if (is_run)
            add_run(open, duration);
          else
            add_call(range, around, duration);
          open.push_back(range);
        },
        [&](const TraceSpan& span) {
          if (counts(*span.record)) open.pop_back();
        });
  }

 private:
  static constexpr size_t kMaxSpans = 1'000'000;

  bool counts(const Record& record) const { return is_marked(record) || (record.kind == RecordKind::run && trace_.is_on(record.start)); }

  static int32_t innermost(const std::vector<int32_t>& open) {
    auto found = std::find_if(open.rbegin(), open.rend(), [](int32_t range) { return range >= 0; });
    return found == open.rend() ? -1 : *found;
  }

  int32_t range_of(int32_t around, const Record& record) {
    auto [found, is_new] = known_.try_emplace({around, record.name}, static_cast<int32_t>(profile_.ranges.size()));
    if (is_new)
      profile_.ranges.push_back(
          {.name = trace_.recording.names[record.name].text, .parent = around, .python = record.kind == RecordKind::python});
    return found->second;
  }

  void add_call(int32_t index, int32_t around, double duration_ns) {
    ProfiledRange& range = profile_.ranges[static_cast<size_t>(index)];
    range.call_ns.push_back(duration_ns);
    range.self_ns += duration_ns;
    if (around >= 0) profile_.ranges[static_cast<size_t>(around)].self_ns -= duration_ns;
  }

  void add_run(const std::vector<int32_t>& open, double duration_ns) {
    for (int32_t range : open)
      if (range >= 0) profile_.ranges[static_cast<size_t>(range)].run_ns += duration_ns;
  }

  const ProfileTrace& trace_;
  Profile& profile_;
  std::map<std::pair<int32_t, uint32_t>, int32_t> known_;  // index of a range, by the surrounding range and the name
};

}  // namespace

void add_marks(const ProfileTrace& trace, Profile& profile) {
  for (const Recording::Thread& thread : trace.recording.threads)
    for (const Record& record : thread.records)
      if (record.kind == RecordKind::instant)
        profile.marks.push_back(
            {trace.recording.names[record.name].text, static_cast<int32_t>(thread.index), trace.recording.to_ns(record.start)});
  std::stable_sort(profile.marks.begin(), profile.marks.end(), [](const ProfiledMark& a, const ProfiledMark& b) { return a.ns < b.ns; });
}

void add_ranges(const ProfileTrace& trace, Profile& profile) {
  const auto has_ranges = [](const Recording::Thread& thread) {
    return std::any_of(thread.records.begin(), thread.records.end(),
                       [](const Record& record) { return is_marked(record) || record.kind == RecordKind::instant; });
  };
  if (std::none_of(trace.recording.threads.begin(), trace.recording.threads.end(), has_ranges)) return;
  RangeTree tree(trace, profile);
  for (const TraceRow& row : rows_of({.recording = &trace.recording})) tree.add(row);
}

}  // namespace treadle::profile
