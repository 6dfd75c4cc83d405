#include "profile/analysis/trace_rows.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "profile/analysis/layer_spans.h"
#include "profile/analysis/pool_states.h"
#include "treadle/error.h"

namespace treadle::profile {
namespace {

// Returns a number that orders ranges with the same start and end: kinds of ranges that enclose others have lower numbers.
int depth_of(RecordKind kind) {
  switch (kind) {
    case RecordKind::phase: return 3;
    case RecordKind::node:
    case RecordKind::chunk:
    case RecordKind::copy:
    case RecordKind::launch: return 2;
    case RecordKind::layer: return 1;
    default: return 0;
  }
}

// Distributes the ranges of one thread over rows, so that ranges in a row nest. Keeps the ends of each row's open ranges in `open_`.
class RowBuilder {
 public:
  RowBuilder(const Recording::Thread& thread, size_t num_spans) : thread_(thread) {
    add_row();
    rows_.front().spans.reserve(num_spans);
  }

  void add(const TraceSpan& span) {
    size_t row = 0;
    if (!is_point(*span.record))
      while (!fits(row, span)) ++row;
    rows_[row].spans.push_back(span);
  }
  std::vector<TraceRow>& rows() { return rows_; }

 private:
  void add_row() {
    rows_.push_back({&thread_, static_cast<int64_t>(rows_.size()), {}});
    open_.emplace_back();
  }

  bool fits(size_t row, const TraceSpan& span) {
    if (row == rows_.size()) add_row();
    std::vector<int64_t>& open = open_[row];
    while (!open.empty() && open.back() <= span.start_ns) open.pop_back();
    if (!open.empty() && open.back() < span.end_ns && row + 1 < static_cast<size_t>(kMaxRowsOfThread)) return false;
    open.push_back(span.end_ns);
    return true;
  }

  const Recording::Thread& thread_;
  std::vector<TraceRow> rows_;
  std::vector<std::vector<int64_t>> open_;
};

}  // namespace

int32_t TraceView::node_index(const Record& record) const {
  if (!node_of || !(record.kind == RecordKind::node || record.kind == RecordKind::chunk || record.kind == RecordKind::copy ||
                    record.kind == RecordKind::launch))
    return -1;
  auto found = node_of->find(record.name);
  return found == node_of->end() ? -1 : found->second;
}

const std::string& TraceView::name(const Record& record) const {
  static const std::string kUnknown = "(unknown)";
  return record.name < recording->names.size() ? recording->names[record.name].text : kUnknown;
}

bool TraceView::shows(const Record& record) const {
  if (record.start < first_ticks) return false;
  if (record.kind == RecordKind::launch) return launches;
  return record.kind != RecordKind::pool || pool_runs || state_of(*recording, record) != PoolState::running;
}

// Matches launches on the host with activities on devices. A run launches a node once, but run numbers repeat. So of the launches with the
// same node and run number, the n-th belongs to the n-th such activity that follows.
Correlations::Correlations(const TraceView& view) {
  struct Pair {
    std::vector<const Record*> launches, activities;
  };
  std::map<std::pair<uint32_t, uint16_t>, Pair> pairs;
  for (const Recording::Thread& thread : view.recording->threads)
    for (const Record& record : thread.records)
      if (record.kind == RecordKind::launch) pairs[{record.name, record.run}].launches.push_back(&record);
  if (pairs.empty()) return;
  for (const Recording::Thread& thread : view.recording->threads)
    for (const Record& record : thread.records)
      if (record.kind == RecordKind::node || record.kind == RecordKind::copy)
        if (auto found = pairs.find({record.name, record.run}); found != pairs.end()) found->second.activities.push_back(&record);
  const auto by_start = [](const Record* a, const Record* b) { return a->start < b->start; };
  for (auto& [key, pair] : pairs) {
    std::sort(pair.launches.begin(), pair.launches.end(), by_start);
    std::sort(pair.activities.begin(), pair.activities.end(), by_start);
    auto launch = pair.launches.begin();
    for (const Record* activity : pair.activities) {
      if (launch == pair.launches.end()) break;
      if ((*launch)->start > activity->start) continue;  // this activity's launch was not recorded
      activities_.push_back(activity);
      numbers_[activity] = numbers_[*launch++] = static_cast<int64_t>(activities_.size());
    }
  }
}

int64_t Correlations::of(const Record& record) const {
  if (numbers_.empty()) return 0;
  const auto found = numbers_.find(&record);
  return found == numbers_.end() ? 0 : found->second;
}

const Record* Correlations::activity(int64_t number) const { return number > 0 ? activities_[static_cast<size_t>(number - 1)] : nullptr; }

// Finds where each arrow begins and ends. It begins at the forward node in the same run. In a JointModule, whose backward pass is a run of
// its own, it begins at the last forward record before the backward one.
GradientArrows::GradientArrows(const TraceView& view, int64_t first_id) {
  if (!view.nodes) return;
  std::vector<bool> wanted(view.nodes->size(), false);
  for (const ProfiledNode& node : *view.nodes)
    for (int32_t forward : node.forward) wanted[static_cast<size_t>(forward)] = true;
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return;
  struct Made {
    const Record* record;
    int64_t thread;
  };
  std::vector<std::vector<Made>> made(view.nodes->size());  // records of each forward node, sorted by end
  const auto each_node = [&](auto&& visit) {
    for (const Recording::Thread& thread : view.recording->threads)
      for (const Record& record : thread.records)
        if (const int32_t node = record.kind == RecordKind::node ? view.node_index(record) : -1; node >= 0)
          visit(record, static_cast<size_t>(node), int64_t{thread.index} * kMaxRowsOfThread);
  };
  each_node([&](const Record& record, size_t node, int64_t thread) {
    if (wanted[node]) made[node].push_back({&record, thread});
  });
  for (auto& list : made) std::sort(list.begin(), list.end(), [](const Made& a, const Made& b) { return a.record->end < b.record->end; });
  each_node([&](const Record& record, size_t node, int64_t) {
    for (int32_t forward : (*view.nodes)[node].forward) {
      const std::vector<Made>& list = made[static_cast<size_t>(forward)];
      const auto behind =
          std::upper_bound(list.begin(), list.end(), record.start, [](uint64_t t, const Made& m) { return t < m.record->end; });
      if (behind == list.begin()) continue;
      auto from = behind - 1;
      for (auto it = behind; it != list.begin() && behind - it < 64;)
        if ((--it)->record->run == record.run) {
          from = it;
          break;
        }
      begins_[from->record].push_back(first_id);
      ends_[&record].push_back(first_id++);
      threads_[&record] = from->thread;
    }
  });
}

const std::vector<int64_t>& GradientArrows::found(const Numbers& numbers, const Record& record) {
  static const std::vector<int64_t> kNone;
  if (numbers.empty()) return kNone;
  const auto it = numbers.find(&record);
  return it == numbers.end() ? kNone : it->second;
}

int64_t GradientArrows::forward_thread(const Record& record) const {
  const auto it = threads_.find(&record);
  return it == threads_.end() ? -1 : it->second;
}

TraceView view_of(const Profile& profile) {
  if (!profile.trace)
    throw Error(ErrorCode::invalid_argument,
                "the profile has no single events: a trace is written of a profile that was just recorded, not of one read from a file");
  return {.recording = &profile.trace->recording,
          .nodes = &profile.nodes,
          .node_of = &profile.trace->node_of,
          .load = &profile.trace->load,
          .device_rows = &profile.trace->device_rows};
}

std::string title_of(const Recording::Thread& thread) {
  if (thread.system_id < 0) return thread.name;
  return (thread.name.empty() ? "thread" : thread.name) + " " + std::to_string(thread.system_id);
}

std::string TraceRow::title() const {
  const std::string name = title_of(*thread);
  return number > 0 ? name + " (overlapping " + std::to_string(number) + ")" : name;
}

bool is_outer(const TraceSpan& a, const TraceSpan& b) {
  if (a.start_ns != b.start_ns) return a.start_ns < b.start_ns;
  if (a.end_ns != b.end_ns) return a.end_ns > b.end_ns;
  return depth_of(a.record->kind) < depth_of(b.record->kind);
}

namespace {

bool nest(const std::vector<TraceSpan>& spans) {
  std::vector<int64_t> open;  // ends of the ranges that are open at this point
  for (const TraceSpan& span : spans) {
    if (is_point(*span.record)) continue;
    while (!open.empty() && open.back() <= span.start_ns) open.pop_back();
    if (!open.empty() && open.back() < span.end_ns) return false;
    open.push_back(span.end_ns);
  }
  return true;
}

// Sorts spans, stably. Records are stored in the order of their ends, so most are in order already; only outer ranges such as runs move.
void sort_spans(std::vector<TraceSpan>& spans) {
  std::vector<TraceSpan> late;
  size_t kept = 0;
  for (const TraceSpan& span : spans)
    if (kept > 0 && is_outer(span, spans[kept - 1]))
      late.push_back(span);
    else
      spans[kept++] = span;
  if (late.empty()) return;
  std::stable_sort(late.begin(), late.end(), is_outer);
  std::copy(late.begin(), late.end(), spans.begin() + static_cast<std::ptrdiff_t>(kept));
  std::inplace_merge(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(kept), spans.end(), is_outer);
}

}  // namespace

std::vector<TraceRow> rows_of(const TraceView& view) {
  std::vector<TraceRow> rows;
  const auto add_rows = [&](const Recording::Thread& thread) {
    std::vector<TraceSpan> spans;
    spans.reserve(thread.records.size());
    for (const Record& record : thread.records)
      if (view.shows(record))
        spans.push_back({std::llround(view.recording->to_ns(record.start)), std::llround(view.recording->to_ns(record.end)), &record});
    sort_spans(spans);
    std::shared_ptr<const std::vector<Record>> layers;
    if (view.layers && !view.layers->empty()) layers = add_layer_spans(view, spans);
    if (nest(spans)) {  // this is nearly always true
      rows.push_back({&thread, 0, std::move(spans), layers});
      return;
    }
    RowBuilder builder(thread, spans.size());
    for (const TraceSpan& span : spans) builder.add(span);
    for (TraceRow& row : builder.rows()) {
      row.layers = layers;
      rows.push_back(std::move(row));
    }
  };
  for (const Recording::Thread& thread : view.recording->threads) add_rows(thread);
  if (view.load && !view.load->records.empty()) add_rows(*view.load);
  return rows;
}

}  // namespace treadle::profile
