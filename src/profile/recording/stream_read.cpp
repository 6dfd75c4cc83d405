// Reads files of StreamWriter. A file may be truncated anywhere, or have any contents.
#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <unordered_map>

#include "core/base/utf8.h"
#include "core/files/file.h"
#include "core/trace/memory_events.h"
#include "profile/analysis/profile_of.h"
#include "profile/model/json.h"
#include "profile/recording/stream_file.h"
#include "profile/recording/stream_sections.h"
#include "treadle/error.h"

namespace treadle::profile {
namespace {

[[noreturn]] void damaged(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("the recording is damaged: {}", what));
}

// Limits of plausible times: 2^55 ticks are four months at 3 GHz, or a year of ns. Computations with such times do not overflow 64 bits.
constexpr uint64_t kLongestTicks = uint64_t{1} << 55U;
constexpr int64_t kLongestSteadyNs = int64_t{1} << 59, kLongestUnixNs = int64_t{1} << 61;
constexpr double kSlowestClock = 100;  // largest plausible number of ns per tick

/// The sections between two marks.
struct StreamPart {
  std::vector<std::string_view> events;
  std::optional<std::string_view> plan;
  std::vector<std::string_view> names;
};

class StreamReader {
 public:
  explicit StreamReader(std::string_view contents) : rest_(contents) {}

  Profile read() {
    rest_.remove_prefix(kStreamMagic.size());
    StreamPart part;
    SectionHead head{};
    for (std::string_view payload; next(head, payload);) {
      switch (head.kind) {
        case kHeaderSection: read_header(payload); break;
        case kPlanSection: part.plan = payload; break;
        case kNamesSection: part.names.push_back(payload); break;
        case kEventsSection: part.events.push_back(payload); break;
        case kMarkSection: take(part, payload), part = {}; break;
        default: damaged(fmt::format("there is a section of the kind {}", head.kind));
      }
    }
    if (!plan_) throw Error(ErrorCode::invalid_argument, "the recording ended before anything was written");
    return finish();
  }

 private:
  // Reads the next section. Returns false at the end of the file, or if the section is truncated.
  bool next(SectionHead& head, std::string_view& payload) {
    if (rest_.size() < sizeof head) return false;
    std::memcpy(&head, rest_.data(), sizeof head);
    rest_.remove_prefix(sizeof head);
    if (rest_.size() < head.size_bytes) return false;
    payload = rest_.substr(0, head.size_bytes);
    rest_.remove_prefix(head.size_bytes);
    return true;
  }

  void read_header(std::string_view payload) {
    const Document json = parse_json(payload);
    const Document& version = json.at("version");
    if (version < kOldestStreamVersion || version > kStreamVersion)
      throw Error(ErrorCode::invalid_argument, fmt::format("this is a recording of version {}; this build reads versions {} to {}",
                                                           version.dump(), kOldestStreamVersion, kStreamVersion));
    recording_.start_ticks = json.at("start_ticks");
  }

  void take(const StreamPart& part, std::string_view payload) {
    const Document mark = parse_json(payload);
    if (part.plan) plan_ = *part.plan;
    for (std::string_view names : part.names) add_names(parse_json(names));
    events_.insert(events_.end(), part.events.begin(), part.events.end());
    const uint64_t from = mark.at("from"), until = mark.at("until"), dropped = mark.at("dropped");
    recording_.dropped += dropped;
    if (dropped > 0) recording_.gaps.emplace_back(from, until);
    recording_.complete_until = until;
    recording_.ns_per_tick = mark.at("ns_per_tick");
    if (!(recording_.ns_per_tick > 0 && recording_.ns_per_tick <= kSlowestClock)) damaged("its clock makes no sense");
    recording_.start_unix_ns = mark.at("start_unix_ns");
    add_anchor(mark);
    intervals_ = mark.at("intervals").get<std::vector<std::pair<uint64_t, uint64_t>>>();
  }

  // Adds the clock anchor of a mark. Keeps about one anchor per second of the ten that are written. Older files have none.
  void add_anchor(const Document& mark) {
    constexpr int64_t kApartNs = 900'000'000;
    if (!mark.contains("clock")) return;
    const Document& clock = mark.at("clock");
    const ClockAnchor anchor{clock.at(0), clock.at(1), clock.at(2)};
    std::vector<ClockAnchor>& anchors = recording_.anchors;
    const uint64_t place = anchor.ticks - recording_.start_ticks;  // wraps around for an earlier time
    const auto is_within = [](int64_t ns, int64_t most) { return ns >= -most && ns <= most; };
    if (place >= kLongestTicks || !is_within(anchor.unix_ns, kLongestUnixNs) || !is_within(anchor.steady_ns, kLongestSteadyNs) ||
        (!anchors.empty() && (anchor.ticks <= anchors.back().ticks || anchor.steady_ns <= anchors.back().steady_ns)))
      damaged("its clocks make no sense");
    // The last anchor always stays; the one before it only if it is far enough from its predecessor.
    if (anchors.size() >= 2 && anchors.back().steady_ns - anchors[anchors.size() - 2].steady_ns < kApartNs) anchors.pop_back();
    anchors.push_back(anchor);
  }

  void add_names(const Document& json) {
    if (json.at("first") != names_.size()) damaged("names are missing");
    for (const Document& name : json.at("names")) names_.push_back({name.at(0), name.at(1), name.at(2)});
  }

  Profile finish() {
    ProfilePlan plan = plan_from_json(*plan_);
    PlanFilter filter = filter_of(plan, recording_.start_ticks);
    recording_.names = filter.filter.texts;
    RecordPicker picker(filter.filter, names_, recording_);
    // Collects all events of a thread before reading them, because the record of a run comes after those of its nodes.
    std::vector<std::vector<std::string_view>> of_threads;
    for (std::string_view payload : events_) {
      const size_t index = thread_of(payload);
      if (index == of_threads.size()) of_threads.emplace_back();
      of_threads[index].push_back(payload);
    }
    for (size_t i = 0; i < of_threads.size(); ++i)
      for (std::string_view payload : of_threads[i]) add_events(payload, picker, recording_.threads[i]);
    const bool is_sane = recording_.complete_until - recording_.start_ticks < kLongestTicks;  // wraps around for an earlier time
    picker.end_open_ranges(is_sane ? recording_.complete_until : recording_.start_ticks);
    std::erase_if(recording_.threads, [](const Recording::Thread& thread) { return thread.records.empty(); });
    for (size_t i = 0; i < recording_.threads.size(); ++i) recording_.threads[i].index = static_cast<uint32_t>(i);
    return profile_of(std::move(plan), std::move(recording_), std::move(filter.node_of), std::move(intervals_));
  }

  static std::pair<ThreadHead, std::string_view> thread_head(std::string_view payload) {
    ThreadHead head{};
    if (payload.size() < sizeof head) damaged("a thread is cut off");
    std::memcpy(&head, payload.data(), sizeof head);
    payload.remove_prefix(sizeof head);
    if (payload.size() < head.name_bytes) damaged("a thread's name is cut off");
    return {head, payload};
  }

  size_t thread_of(std::string_view payload) {
    const auto [head, rest] = thread_head(payload);
    const auto [found, is_new] = threads_.try_emplace(head.system_id, recording_.threads.size());
    if (is_new)
      recording_.threads.push_back(
          {static_cast<uint32_t>(found->second), head.system_id, printable(std::string(rest.substr(0, head.name_bytes))), {}});
    return found->second;
  }

  void add_events(std::string_view payload, RecordPicker& picker, Recording::Thread& thread) {
    const auto [head, rest] = thread_head(payload);
    const std::string_view bytes = rest.substr(head.name_bytes);
    if (bytes.size() % sizeof(RecordEvent) != 0) damaged("events are cut off");
    std::vector<RecordEvent> events(bytes.size() / sizeof(RecordEvent));
    if (!events.empty()) std::memcpy(events.data(), bytes.data(), bytes.size());
    each_record(std::span<const RecordEvent>(events), [&](const Record& record) {
      const bool is_block = record.kind == RecordKind::memory || record.kind == RecordKind::out_of_memory;
      const uint64_t place = record.start - recording_.start_ticks;  // wraps around for an earlier time
      if (static_cast<int>(record.kind) >= kNumRecordKinds || (place >= kLongestTicks && place < uint64_t{0} - kLongestTicks) ||
          (!is_block && record.end - record.start >= kLongestTicks) || (!is_block && record.end < record.start) ||
          (is_block && static_cast<size_t>(BlockRecord::class_of(record.arg1)) >= kNumMemoryClasses))
        damaged("an event makes no sense");
      picker.take(record, thread);
    });
  }

  std::string_view rest_;
  Recording recording_;
  std::vector<RecordName> names_;
  std::optional<std::string_view> plan_;
  std::vector<std::string_view> events_;
  std::vector<std::pair<uint64_t, uint64_t>> intervals_;
  std::unordered_map<int64_t, size_t> threads_;  // index of each thread, by its system thread id
};

}  // namespace

bool is_stream(std::string_view contents) { return contents.starts_with(kStreamMagic); }

Profile read_stream(const std::string& path) {
  const std::shared_ptr<Storage> file = map_file(path);
  const std::string_view contents(reinterpret_cast<const char*>(file->data()), file->size_bytes());
  if (!is_stream(contents)) throw Error(ErrorCode::invalid_argument, fmt::format("{} is no recording of a profile", path));
  return reading([&] { return StreamReader(contents).read(); });
}

}  // namespace treadle::profile
