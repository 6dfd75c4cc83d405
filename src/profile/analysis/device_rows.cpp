#include "profile/analysis/device_rows.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace treadle::profile {
namespace {

class RowMaker {
 public:
  explicit RowMaker(ProfileTrace& trace) : trace_(trace) {}

  void make() {
    std::vector<Recording::Thread>& threads = trace_.recording.threads;
    std::vector<std::vector<Record>> rows(trace_.device_rows.rows.size());
    for (Recording::Thread& thread : threads) {
      const std::set<int32_t> found = rows_in(thread);
      if (found.empty()) continue;
      if (found.size() == 1 && is_of_stream(thread)) {
        thread.name = title(*found.begin());
        continue;
      }
      const auto moved =
          std::stable_partition(thread.records.begin(), thread.records.end(), [&](const Record& r) { return row_of(r) < 0; });
      for (auto record = moved; record != thread.records.end(); ++record) rows[static_cast<size_t>(row_of(*record))].push_back(*record);
      thread.records.erase(moved, thread.records.end());
    }
    std::erase_if(threads, [](const Recording::Thread& thread) { return thread.records.empty(); });
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].empty()) continue;
      std::stable_sort(rows[i].begin(), rows[i].end(), [](const Record& a, const Record& b) { return a.end < b.end; });
      threads.push_back({0, -1 - static_cast<int64_t>(i), title(static_cast<int32_t>(i)), std::move(rows[i])});
    }
    for (size_t i = 0; i < threads.size(); ++i) threads[i].index = static_cast<uint32_t>(i);
  }

 private:
  int32_t row_of(const Record& record) const {
    if (record.kind != RecordKind::node && record.kind != RecordKind::copy && record.kind != RecordKind::phase) return -1;
    const auto node = trace_.node_of.find(record.kind == RecordKind::phase ? static_cast<uint32_t>(record.arg0) : record.name);
    if (node == trace_.node_of.end() || !trace_.device_rows.of(node->second)) return -1;
    return trace_.device_rows.of_node[static_cast<size_t>(node->second)];
  }

  std::set<int32_t> rows_in(const Recording::Thread& thread) const {
    std::set<int32_t> found;
    for (const Record& record : thread.records)
      if (const int32_t row = row_of(record); row >= 0) found.insert(row);
    return found;
  }

  // Returns true for a thread that belongs to a device's stream. Such a thread neither starts runs nor launches work.
  static bool is_of_stream(const Recording::Thread& thread) {
    return std::none_of(thread.records.begin(), thread.records.end(),
                        [](const Record& r) { return r.kind == RecordKind::run || r.kind == RecordKind::launch; });
  }

  std::string title(int32_t row) const {
    const DeviceRow& of = trace_.device_rows.rows[static_cast<size_t>(row)];
    return of.tells_times ? of.name : of.name + kTimesOfLaunches;
  }

  ProfileTrace& trace_;
};

}  // namespace

void add_device_rows(ProfileTrace& trace) {
  if (!trace.device_rows.rows.empty()) RowMaker(trace).make();
}

}  // namespace treadle::profile
