#include "profile/analysis/memory_recording.h"

#include <algorithm>
#include <unordered_map>

#include "core/trace/memory_events.h"
#include "profile/analysis/arena_use.h"

namespace treadle::profile {
namespace {

using ClassBytes = SignedClassBytes;

// Maximum number of timeline points at the begins of nodes. If there were more, only some of the runs contribute points.
constexpr size_t kMaxNodePoints = 200'000;
constexpr size_t kActivations = static_cast<size_t>(MemoryClass::activations);

// Returns the records of allocations and deallocations of all threads, sorted by time.
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

// Replays allocations. An arena is allocated as one block of the class `activations`. The plan says which buffers a run has in it.
class MemoryReplay {
 public:
  MemoryReplay(const ProfileTrace& trace, const Profile& profile, const MemoryStatistics& before, std::vector<MemoryHolding> holders)
      : recording_(trace.recording), arenas_(profile, trace), now_(bytes_before(before)), holders_(std::move(holders)) {
    result_.memory.before = unsigned_of(now_);
    note(recording_.start_ticks, /*shown=*/true);
  }

  RecordedMemory run() {
    const std::vector<ArenaUse::Moment>& moments = arenas_.moments();
    const size_t stride = moments.size() / kMaxNodePoints + 1;
    size_t num_runs = 0;
    auto moment = moments.begin();
    auto take_until = [&](uint64_t ticks) {
      for (; moment != moments.end() && moment->ticks <= ticks; ++moment) {
        const ClassBytes before = arenas_.bytes();
        arenas_.take(*moment->record);
        if (moment->record->kind == RecordKind::run) ++num_runs;
        if (arenas_.bytes() != before) note(moment->ticks, num_runs % stride == 0);
      }
    };
    for (const Record* record : blocks_by_time(recording_)) {
      take_until(record->start);
      ++result_.memory.num_events;
      if (record->kind == RecordKind::out_of_memory)
        result_.memory.refused.push_back(
            {recording_.to_ns(record->start), static_cast<size_t>(record->arg0), BlockRecord::class_of(record->arg1), holder_of(*record)});
      else
        change(*record);
    }
    take_until(UINT64_MAX);
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
      block_of_[number] = result_.memory.blocks.size();
      result_.memory.blocks.push_back(
          {number, BlockRecord::class_of(record.arg1), holder_of(record), static_cast<size_t>(record.arg0), ns, {}});
    } else if (auto found = block_of_.find(number); number != 0 && found != block_of_.end()) {
      result_.memory.blocks[found->second].returned_ns = ns;
    }
    note(record.start, /*shown=*/true);
  }

  // Returns false if the arenas are smaller than planned. The plan describes the last run, and runs with other shapes need less memory.
  bool arenas_are_known() const { return arenas_.total_bytes() <= now_[kActivations]; }

  // Returns the bytes in use by class. Bytes of arenas count for the classes of the planned buffers in them; free ones stay activations.
  ClassBytes divided() const {
    ClassBytes bytes = now_;
    if (!arenas_are_known()) return bytes;
    for (size_t c = 0; c < kNumMemoryClasses; ++c) {
      bytes[kActivations] -= arenas_.bytes()[c];
      bytes[c] += arenas_.bytes()[c];
    }
    return bytes;
  }

  // Notes the bytes in use at a moment, which may be the peak. Of moments with equal totals, the peak is that with the fullest arenas.
  void note(uint64_t ticks, bool shown) {
    const double ns = recording_.to_ns(ticks);
    const auto bytes = unsigned_of(divided());
    size_t total = 0;
    for (size_t of_class : bytes) total += of_class;
    if (shown) show(ticks, ns, bytes);
    const int64_t used = arenas_are_known() ? arenas_.total_bytes() : 0;
    if (total < result_.memory.peak_bytes || (total == result_.memory.peak_bytes && used <= used_at_peak_)) return;
    result_.memory.peak_bytes = total;
    result_.memory.peak_ns = ns;
    result_.memory.at_peak = unsigned_of(now_);
    used_at_peak_ = used;
    steps_at_peak_ = used > 0 ? arenas_.steps() : std::map<uint16_t, int32_t>();
  }

  void show(uint64_t ticks, double ns, const std::array<size_t, kNumMemoryClasses>& bytes) {
    result_.memory.timeline.push_back({ns, bytes});
    for (size_t c = 0; c < kNumMemoryClasses; ++c)
      if (bytes[c] != shown_[c]) result_.counters.push_back({ticks, static_cast<MemoryClass>(c), bytes[c]});
    shown_ = bytes;
  }

  // Lists the memory in use at the peak, by name. Memory that was allocated before the profile has no names, except for weights; its bytes
  // are summed by class.
  void find_holders() {
    ClassBytes named{};
    std::vector<MemoryHolding> alive;
    auto add = [&](MemoryHolding holding) {
      named[static_cast<size_t>(holding.memory_class)] += static_cast<int64_t>(holding.size_bytes);
      alive.push_back(std::move(holding));
    };
    for (const ProfiledBlock& block : result_.memory.blocks)
      if (block.taken_ns <= result_.memory.peak_ns && (!block.returned_ns || *block.returned_ns > result_.memory.peak_ns))
        add({block.holder, block.memory_class, block.size_bytes});
    for (MemoryHolding& holding : holders_) {
      const auto of_class = static_cast<size_t>(holding.memory_class);
      if (named[of_class] + static_cast<int64_t>(holding.size_bytes) <= static_cast<int64_t>(result_.memory.at_peak[of_class]))
        add(std::move(holding));
    }
    for (size_t c = 0; c < kNumMemoryClasses; ++c)
      if (const int64_t rest = static_cast<int64_t>(result_.memory.at_peak[c]) - named[c]; rest > 0)
        alive.push_back({"", static_cast<MemoryClass>(c), static_cast<size_t>(rest)});
    divide_arenas(alive);
    std::stable_sort(alive.begin(), alive.end(), [](const auto& a, const auto& b) { return a.size_bytes > b.size_bytes; });
    result_.memory.holders_at_peak = std::move(alive);
  }

  void divide_arenas(std::vector<MemoryHolding>& alive) {
    for (const auto& [run, step] : steps_at_peak_) {
      std::vector<MemoryHolding> inside = arenas_.holdings_at(step);
      size_t size_bytes = 0;
      for (const MemoryHolding& holding : inside) size_bytes += holding.size_bytes;
      const auto arena = std::find_if(alive.begin(), alive.end(), [&](const MemoryHolding& holding) {
        return holding.name == "arena" && holding.memory_class == MemoryClass::activations && holding.size_bytes >= size_bytes;
      });
      if (arena == alive.end()) continue;
      arena->size_bytes -= size_bytes;
      if (arena->size_bytes == 0) alive.erase(arena);
      for (MemoryHolding& holding : inside) {
        result_.memory.at_peak[kActivations] -= holding.size_bytes;
        result_.memory.at_peak[static_cast<size_t>(holding.memory_class)] += holding.size_bytes;
        alive.push_back(std::move(holding));
      }
    }
  }

  const Recording& recording_;
  ArenaUse arenas_;
  ClassBytes now_;
  std::vector<MemoryHolding> holders_;
  std::unordered_map<uint64_t, size_t> block_of_;
  int64_t used_at_peak_ = 0;                       // bytes in use within arenas at the peak
  std::map<uint16_t, int32_t> steps_at_peak_;      // the step of each current run at the peak
  std::array<size_t, kNumMemoryClasses> shown_{};  // bytes at the last counter record
  RecordedMemory result_;
};

}  // namespace

RecordedMemory measure_memory(const ProfileTrace& trace, const Profile& profile, const MemoryStatistics& before,
                              std::vector<MemoryHolding> holders) {
  return MemoryReplay(trace, profile, before, std::move(holders)).run();
}

void add_memory_counters(Recording& recording, const std::vector<MemoryCounter>& counters) {
  const auto first_name = static_cast<uint32_t>(recording.names.size());
  for (size_t c = 0; c < kNumMemoryClasses; ++c)
    recording.names.push_back({"memory: " + std::string(memory_class_name(static_cast<MemoryClass>(c))), "bytes", {}});
  Recording::Thread row{static_cast<uint32_t>(recording.threads.size()), 0, "memory", {}};
  for (const MemoryCounter& counter : counters)
    row.records.push_back({counter.ticks, counter.ticks, static_cast<int64_t>(counter.bytes), 0,
                           first_name + static_cast<uint32_t>(counter.memory_class), RecordKind::counter});
  recording.threads.push_back(std::move(row));
}

}  // namespace treadle::profile
