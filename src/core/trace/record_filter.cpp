#include "core/trace/record_filter.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

namespace treadle {
namespace {

bool is_range(RecordKind kind) { return kind == RecordKind::user || kind == RecordKind::python; }

/// Marks an open range (in Record::run) whose name is known only at its end. Other records of ranges do not use that field.
constexpr uint16_t kUnnamed = 1;
bool is_unnamed(const Record& open) { return open.run == kUnnamed; }

/// Orders ranges by start, name and kind. Records that agree in these describe the same range, so they compare equal.
struct BySameRange {
  static auto key(const Record& range) { return std::tuple(range.start, range.name, range.kind); }
  bool operator()(const Record& a, const Record& b) const { return key(a) < key(b); }
};

/// For moments in ascending order: finds the end of the innermost range or run around each.
class EndsAround {
 public:
  explicit EndsAround(const std::vector<Record>& records) {
    for (const Record& record : records)
      if (is_range(record.kind) || record.kind == RecordKind::run) around_.push_back(record);
    std::stable_sort(around_.begin(), around_.end(),
                     [](const Record& a, const Record& b) { return a.start != b.start ? a.start < b.start : a.end > b.end; });
  }
  uint64_t end_around(uint64_t start, uint64_t otherwise) {
    for (; next_ < around_.size() && around_[next_].start <= start; ++next_) {
      leave(around_[next_].start);
      under_way_.push_back(around_[next_].end);
    }
    leave(start);
    return under_way_.empty() ? otherwise : under_way_.back();
  }

 private:
  void leave(uint64_t until) {
    while (!under_way_.empty() && under_way_.back() <= until) under_way_.pop_back();
  }

  std::vector<Record> around_;
  size_t next_ = 0;
  std::vector<uint64_t> under_way_;  // ends of the open ranges and runs, innermost last
};

/// Returns the time until which a range that began at `start` is known to have been open, since its end may be among lost records. Nullopt:
/// it began while records were lost.
std::optional<uint64_t> known_until(const Recording& recording, const std::vector<Record>& records, uint64_t start) {
  const auto gap = std::find_if(recording.gaps.begin(), recording.gaps.end(), [&](const auto& lost) { return lost.second > start; });
  if (gap == recording.gaps.end()) return UINT64_MAX;
  if (gap->first <= start) return std::nullopt;
  const auto after =
      std::upper_bound(records.begin(), records.end(), gap->second, [](uint64_t t, const Record& record) { return t < record.end; });
  return after == records.begin() ? gap->first : std::max(gap->first, (after - 1)->end);
}

}  // namespace

void RecordPicker::take(Record record, Recording::Thread& thread) {
  if (thread.index != thread_) strangers_.clear();
  thread_ = thread.index;
  if (record.start < filter_.from) return;
  if (record.kind == RecordKind::memory || record.kind == RecordKind::out_of_memory) {
    if (filter_.account == 0 || record.end != filter_.account) return;
    record.end = record.start;
    record.name = name_of(record.name).value_or(unnamed());
  } else if (record.kind == RecordKind::phase || record.kind == RecordKind::chunk) {
    const auto node = filter_.kernel_phases ? name_of(record.name) : std::nullopt;
    if (!node) return;
    record.name = *node;
    if (record.kind == RecordKind::phase) record.arg0 = *node, record.name = phase_name(static_cast<KernelPhase>(record.arg1));
  } else if (record.kind == RecordKind::python && !filter_.python_calls) {
    return;
  } else if (const auto name = name_of(record.name)) {
    record.name = *name;
  } else {
    if (record.kind == RecordKind::node || record.kind == RecordKind::copy) strangers_.push_back(record.start);
    return;
  }
  if (record.kind == RecordKind::begin) {
    record.kind = static_cast<RecordKind>(record.arg0), record.arg0 = 0;
    if (record.kind == RecordKind::begin) record.kind = RecordKind::user, record.run = kUnnamed;
    if (!is_range(record.kind) || (record.kind == RecordKind::python && !filter_.python_calls)) return;
    if (open_.size() <= thread.index) open_.resize(thread.index + 1);
    open_[thread.index].push_back(record);
    return;
  }
  if (is_range(record.kind)) close_open(record, thread.index);
  // Nodes end, and are recorded, before their run. Unknown nodes that began after a wanted run began are part of that run.
  if (record.kind == RecordKind::run) {
    for (uint64_t start : strangers_) recording_.unknown += start >= record.start;
    strangers_.clear();
  }
  thread.records.push_back(record);
}

// Removes an ended range from the open ranges of its thread.
void RecordPicker::close_open(const Record& ended, uint32_t thread) {
  if (thread >= open_.size()) return;
  std::vector<Record>& open = open_[thread];
  const auto found = std::lower_bound(open.begin(), open.end(), ended.start, [](const Record& r, uint64_t t) { return r.start < t; });
  for (auto same = found; same != open.end() && same->start == ended.start; ++same)
    if (BySameRange::key(*same) == BySameRange::key(ended) || (is_unnamed(*same) && ended.kind == RecordKind::user)) {
      open.erase(same);
      return;
    }
}

// Removes from the open ranges those that ended on another thread, or whose end was recorded before their begin. There are few open ranges,
// so one pass over all records is enough.
void RecordPicker::drop_ended_elsewhere() {
  std::vector<Record> open;
  for (const std::vector<Record>& of_thread : open_) open.insert(open.end(), of_thread.begin(), of_thread.end());
  if (open.empty()) return;
  std::sort(open.begin(), open.end(), BySameRange());
  std::vector<Record> ended;
  for (const Recording::Thread& thread : recording_.threads)
    for (const Record& record : thread.records)
      if (is_range(record.kind) && std::binary_search(open.begin(), open.end(), record, BySameRange())) ended.push_back(record);
  std::sort(ended.begin(), ended.end(), BySameRange());
  for (std::vector<Record>& of_thread : open_)
    std::erase_if(of_thread, [&](const Record& range) { return std::binary_search(ended.begin(), ended.end(), range, BySameRange()); });
  drop_unnamed_ended_elsewhere();
}

// Like drop_ended_elsewhere(), for ranges without a name, which are matched by their starts alone.
void RecordPicker::drop_unnamed_ended_elsewhere() {
  std::unordered_set<uint64_t> starts;
  for (const std::vector<Record>& of_thread : open_)
    for (const Record& range : of_thread)
      if (is_unnamed(range)) starts.insert(range.start);
  if (starts.empty()) return;
  std::unordered_set<uint64_t> ended;
  for (const Recording::Thread& thread : recording_.threads)
    for (const Record& record : thread.records)
      if (record.kind == RecordKind::user && starts.contains(record.start)) ended.insert(record.start);
  for (std::vector<Record>& of_thread : open_)
    std::erase_if(of_thread, [&](Record& range) { return is_unnamed(range) && ended.contains(range.start); });
  for (std::vector<Record>& of_thread : open_)
    for (Record& range : of_thread) range.run = is_unnamed(range) ? 0 : range.run;
}

void RecordPicker::end_open_ranges(uint64_t until) {
  drop_ended_elsewhere();
  for (Recording::Thread& thread : recording_.threads) {
    if (thread.index >= open_.size() || open_[thread.index].empty()) continue;
    std::vector<Record>& open = open_[thread.index];
    std::stable_sort(open.begin(), open.end(), [](const Record& a, const Record& b) { return a.start < b.start; });
    uint64_t last = until;
    for (const Record& record : thread.records) last = std::max(last, record.end);
    EndsAround ends(thread.records);
    std::erase_if(open, [&](Record& range) {
      const std::optional<uint64_t> known = known_until(recording_, thread.records, range.start);
      range.end = std::min(ends.end_around(range.start, std::max(last, range.start)), known.value_or(0));
      return !known;
    });
    // Records are ordered by their ends; of those with the same end, inner ones come first.
    std::vector<Record> records(open.rbegin(), open.rend());
    records.insert(records.end(), thread.records.begin(), thread.records.end());
    std::stable_sort(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.end < b.end; });
    thread.records = std::move(records);
    open.clear();
  }
}

std::optional<uint32_t> RecordPicker::name_of(uint32_t name) {
  if (Recorder::is_reserved(name)) {
    auto found = filter_.names.find(name);
    return found == filter_.names.end() ? std::nullopt : std::optional(found->second);
  }
  if (name >= interned_.size()) return std::nullopt;
  auto [found, is_new] = interned_names_.try_emplace(name, static_cast<uint32_t>(recording_.names.size()));
  if (is_new) recording_.names.push_back(interned_[name]);
  return found->second;
}

uint32_t RecordPicker::phase_name(KernelPhase phase) {
  std::optional<uint32_t>& known = phase_names_[static_cast<size_t>(phase) % kNumKernelPhases];
  if (!known) {
    known = static_cast<uint32_t>(recording_.names.size());
    recording_.names.push_back({std::string(treadle::name_of(phase)), {}, {}});
  }
  return *known;
}

uint32_t RecordPicker::unnamed() {
  if (!unnamed_) {
    unnamed_ = static_cast<uint32_t>(recording_.names.size());
    recording_.names.emplace_back();
  }
  return *unnamed_;
}

}  // namespace treadle
