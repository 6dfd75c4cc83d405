#include "profile/memory_recording.h"

#include <algorithm>
#include <unordered_map>

#include "core/memory_events.h"

namespace treadle::profile {
namespace {

using ClassBytes = std::array<int64_t, kNumMemoryClasses>;

// Of all threads, by time; what goes before what comes at the same tick.
std::vector<const Record*> blocks_by_time(const Recording& recording) {
  std::vector<const Record*> found;
  for (const Recording::Thread& thread : recording.threads)
    for (const Record& record : thread.records)
      if (record.kind == RecordKind::memory || record.kind == RecordKind::out_of_memory) found.push_back(&record);
  std::stable_sort(found.begin(), found.end(), [](const Record* a, const Record* b) { return a->start < b->start; });
  return found;
}

ClassBytes bytes_before(const MemoryStatistics& before) {
  ClassBytes bytes{};
  for (size_t c = 0; c < kNumMemoryClasses; ++c) bytes[c] = static_cast<int64_t>(before.classes[c].bytes);
  return bytes;
}

size_t class_index(const Record& record) { return static_cast<size_t>(BlockRecord::class_of(record.arg1)); }

class MemoryReplay {
 public:
  MemoryReplay(const ProfileTrace& trace, const MemoryStatistics& before, std::vector<MemoryHolding> holders)
      : recording_(trace.recording), now_(bytes_before(before)), holders_(std::move(holders)) {
    result_.before = unsigned_of(now_);
    note(0);
  }

  MeasuredMemory run() {
    for (const Record* record : blocks_by_time(recording_)) {
      ++result_.num_events;
      if (record->kind == RecordKind::out_of_memory)
        result_.refused.push_back(
            {recording_.to_ns(record->start), static_cast<size_t>(record->arg0), BlockRecord::class_of(record->arg1), holder_of(*record)});
      else
        change(*record);
    }
    find_holders();
    return std::move(result_);
  }

 private:
  static std::array<size_t, kNumMemoryClasses> unsigned_of(const ClassBytes& bytes) {
    std::array<size_t, kNumMemoryClasses> result{};
    for (size_t c = 0; c < kNumMemoryClasses; ++c) result[c] = static_cast<size_t>(std::max<int64_t>(bytes[c], 0));
    return result;
  }

  std::string holder_of(const Record& record) const { return recording_.names[record.name].text; }

  void change(const Record& record) {
    const double ns = recording_.to_ns(record.start);
    const uint64_t number = BlockRecord::number_of(record.arg1);
    now_[class_index(record)] += record.arg0;
    if (record.arg0 > 0) {
      block_of_[number] = result_.blocks.size();
      result_.blocks.push_back({number, BlockRecord::class_of(record.arg1), holder_of(record), static_cast<size_t>(record.arg0), ns, {}});
    } else if (auto found = block_of_.find(number); number != 0 && found != block_of_.end()) {
      result_.blocks[found->second].returned_ns = ns;
    }
    note(ns);
  }

  void note(double ns) {
    const auto bytes = unsigned_of(now_);
    size_t total = 0;
    for (size_t of_class : bytes) total += of_class;
    result_.timeline.push_back({ns, bytes});
    if (total <= result_.peak_bytes) return;
    result_.peak_bytes = total;
    result_.peak_ns = ns;
    result_.at_peak = bytes;
  }

  // What was alive at the peak, by name. Of what was there before, the weights have names; the rest of a class has none.
  void find_holders() {
    ClassBytes named{};
    std::vector<MemoryHolding> alive;
    auto add = [&](MemoryHolding holding) {
      named[static_cast<size_t>(holding.memory_class)] += static_cast<int64_t>(holding.size_bytes);
      alive.push_back(std::move(holding));
    };
    for (const ProfiledBlock& block : result_.blocks)
      if (block.taken_ns <= result_.peak_ns && (!block.returned_ns || *block.returned_ns > result_.peak_ns))
        add({block.holder, block.memory_class, block.size_bytes});
    for (MemoryHolding& holding : holders_) {
      const auto of_class = static_cast<size_t>(holding.memory_class);
      if (named[of_class] + static_cast<int64_t>(holding.size_bytes) <= static_cast<int64_t>(result_.at_peak[of_class]))
        add(std::move(holding));
    }
    for (size_t c = 0; c < kNumMemoryClasses; ++c)
      if (const int64_t rest = static_cast<int64_t>(result_.at_peak[c]) - named[c]; rest > 0)
        alive.push_back({"", static_cast<MemoryClass>(c), static_cast<size_t>(rest)});
    std::stable_sort(alive.begin(), alive.end(), [](const auto& a, const auto& b) { return a.size_bytes > b.size_bytes; });
    result_.holders_at_peak = std::move(alive);
  }

  const Recording& recording_;
  ClassBytes now_;
  std::vector<MemoryHolding> holders_;
  std::unordered_map<uint64_t, size_t> block_of_;
  MeasuredMemory result_;
};

}  // namespace

MeasuredMemory measure_memory(const ProfileTrace& trace, const MemoryStatistics& before, std::vector<MemoryHolding> holders) {
  return MemoryReplay(trace, before, std::move(holders)).run();
}

void add_memory_counters(Recording& recording, const MemoryStatistics& before) {
  const std::vector<const Record*> blocks = blocks_by_time(recording);
  ClassBytes now = bytes_before(before);
  const auto first_name = static_cast<uint32_t>(recording.names.size());
  for (size_t c = 0; c < kNumMemoryClasses; ++c)
    recording.names.push_back({"memory: " + std::string(memory_class_name(static_cast<MemoryClass>(c))), "bytes", {}});
  Recording::Thread counters{static_cast<uint32_t>(recording.threads.size()), 0, "memory", {}};
  auto add = [&](uint64_t ticks, size_t c) {
    counters.records.push_back({ticks, ticks, std::max<int64_t>(now[c], 0), 0, first_name + static_cast<uint32_t>(c), RecordKind::counter});
  };
  for (size_t c = 0; c < kNumMemoryClasses; ++c)
    if (now[c] > 0) add(recording.start_ticks, c);
  for (const Record* record : blocks) {
    if (record->kind != RecordKind::memory) continue;
    now[class_index(*record)] += record->arg0;
    add(record->start, class_index(*record));
  }
  recording.threads.push_back(std::move(counters));
}

}  // namespace treadle::profile
