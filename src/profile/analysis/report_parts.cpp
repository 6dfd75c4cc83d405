#include "profile/analysis/report_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "profile/analysis/statistics.h"

namespace treadle::profile {
namespace {

constexpr size_t kMaxPoints = 4000, kMaxHolders = 200, kMaxBlocks = 200;

NamedBytes named_bytes(const MeasuredMemory::ClassBytes& bytes) {
  NamedBytes named;
  for (size_t c = 0; c < kNumMemoryClasses; ++c)
    if (bytes[c] > 0) named.emplace_back(class_name(static_cast<MemoryClass>(c)), bytes[c]);
  return named;
}

size_t total_of(const MeasuredMemory::ClassBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), size_t{0}); }

// Divides the points into groups of equal size, and keeps the point with the most bytes of each group, so that no peak gets lost.
std::vector<const MeasuredMemory::Point*> thinned(const std::vector<MeasuredMemory::Point>& points) {
  const size_t stride = points.size() / kMaxPoints + 1;
  std::vector<const MeasuredMemory::Point*> kept;
  for (size_t from = 0; from < points.size(); from += stride) {
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(from);
    const auto last = points.begin() + static_cast<std::ptrdiff_t>(std::min(from + stride, points.size()));
    kept.push_back(&*std::max_element(first, last, [](const auto& a, const auto& b) { return total_of(a.bytes) < total_of(b.bytes); }));
  }
  return kept;
}

MeasuredMemoryReport::Timeline timeline_of(const std::vector<MeasuredMemory::Point>& points) {
  const auto kept = thinned(points);
  MeasuredMemoryReport::Timeline timeline{.points = points.size(), .ms = {}, .bytes = {}};
  for (const auto* point : kept) timeline.ms.push_back(milliseconds(point->ns));
  for (size_t c = 0; c < kNumMemoryClasses; ++c) {
    if (std::all_of(kept.begin(), kept.end(), [c](const auto* point) { return point->bytes[c] == 0; })) continue;
    std::vector<size_t>& bytes = timeline.bytes.emplace_back(class_name(static_cast<MemoryClass>(c)), std::vector<size_t>{}).second;
    for (const auto* point : kept) bytes.push_back(point->bytes[c]);
  }
  return timeline;
}

// Returns the largest memory blocks, in order of allocation.
std::vector<MeasuredMemoryReport::Block> blocks_of(const std::vector<ProfiledBlock>& blocks) {
  std::vector<const ProfiledBlock*> largest;
  for (const ProfiledBlock& block : blocks) largest.push_back(&block);
  if (largest.size() > kMaxBlocks) {
    std::nth_element(largest.begin(), largest.begin() + kMaxBlocks, largest.end(),
                     [](const auto* a, const auto* b) { return a->size_bytes > b->size_bytes; });
    largest.resize(kMaxBlocks);
  }
  std::sort(largest.begin(), largest.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  std::vector<MeasuredMemoryReport::Block> list;
  for (const ProfiledBlock* block : largest) {
    list.push_back({{block->holder, class_name(block->memory_class), block->size_bytes}, block->id, milliseconds(block->taken_ns), {}});
    if (block->returned_ns) list.back().returned_ms = milliseconds(*block->returned_ns);
  }
  return list;
}

}  // namespace

std::string class_name(MemoryClass memory_class) { return std::string(memory_class_name(memory_class)); }

bool computes_in_float32(const PlannedNode& node) {
  const auto hold = [](const std::vector<ProfiledOperand>& operands) {
    return std::all_of(operands.begin(), operands.end(), [](const ProfiledOperand& operand) {
      // Integers of 32 and 64 bits are allowed, because they may be indices in a float32 computation.
      return operand.name.empty() || (operand.dtype != DType::float64 && bits_of(operand.dtype) >= 32);
    });
  };
  return hold(node.inputs) && hold(node.outputs);
}

std::string shape_of(const ProfiledOperand& operand) {
  if (!operand.shape) return "?";
  return operand.shape->rank() == 0 ? "scalar" : fmt::format("{}", fmt::join(*operand.shape, "x"));
}

std::string shapes_of(const PlannedNode& node) {
  std::string text, outputs;
  for (const ProfiledOperand& input : node.inputs)
    if (!input.constant) text += (text.empty() ? "" : ", ") + shape_of(input);
  for (const ProfiledOperand& output : node.outputs) outputs += (outputs.empty() ? "" : ", ") + shape_of(output);
  return text == outputs ? outputs : text + " -> " + outputs;
}

ProfileTimes times_of(const std::vector<double>& ns) {
  const Summary s = summarize(ns);
  ProfileTimes times{.median = milliseconds(s.median),
                     .interval = {},
                     .p10 = milliseconds(s.p10),
                     .p90 = milliseconds(s.p90),
                     .min = milliseconds(s.min),
                     .max = milliseconds(s.max)};
  if (s.interval) times.interval = {milliseconds(s.interval->first), milliseconds(s.interval->second)};
  return times;
}

std::vector<ProfileReport::Range> ranges_of(const Profile& profile) {
  std::vector<ProfileReport::Range> list;
  for (const ProfiledRange& range : profile.ranges)
    list.push_back({.name = range.name,
                    .parent = range.parent,
                    .python = range.python,
                    .calls = static_cast<int64_t>(range.call_ns.size()),
                    .ms = times_of(range.call_ns),
                    .total_ms = milliseconds(std::accumulate(range.call_ns.begin(), range.call_ns.end(), 0.0)),
                    .self_ms = milliseconds(range.self_ns),
                    .runs_ms = milliseconds(range.run_ns)});
  return list;
}

std::vector<ProfileReport::Load> load_of(const Profile& profile) {
  std::vector<ProfileReport::Load> list;
  std::vector<double> sums_ns;
  std::vector<int32_t> index_of;  // for each phase of the profile, its index in `list`
  for (const ProfiledPhase& phase : profile.load) {
    const int32_t parent = phase.parent >= 0 ? index_of[static_cast<size_t>(phase.parent)] : -1;
    const auto same = std::find_if(list.begin(), list.end(), [&](const auto& l) { return l.parent == parent && l.name == phase.name; });
    const auto index = static_cast<size_t>(same - list.begin());
    if (same == list.end()) {
      list.push_back({.name = phase.name, .parent = parent, .start_ms = milliseconds(phase.start_ns)});
      sums_ns.push_back(0);
    }
    ++list[index].calls;
    sums_ns[index] += phase.duration_ns;
    index_of.push_back(static_cast<int32_t>(index));
  }
  for (size_t i = 0; i < list.size(); ++i) list[i].ms = milliseconds(sums_ns[i]);
  return list;
}

std::vector<ProfileReport::PoolThread> pool_of(const Profile& profile) {
  std::vector<ProfileReport::PoolThread> list;
  for (const ProfiledPoolThread& thread : profile.pool) {
    const double all = std::accumulate(thread.state_ns.begin(), thread.state_ns.end(), 0.0);
    auto& made = list.emplace_back(
        ProfileReport::PoolThread{thread.thread, profile.threads[static_cast<size_t>(thread.thread)], thread.calls, milliseconds(all), {}});
    for (size_t s = 0; s < thread.state_ns.size(); ++s) made.states[s] = rounded(all > 0 ? thread.state_ns[s] / all : 0);
  }
  return list;
}

ProfileReport::Clock clock_of(const Profile& profile) {
  ProfileReport::Clock clock;
  double set_ns = 0;
  const ProfiledClockPair& first = profile.clock.front();
  for (const ProfiledClockPair& pair : profile.clock) {
    clock.pairs.emplace_back(milliseconds(pair.ns), pair.unix_ns);
    const double off = static_cast<double>(pair.unix_ns - first.unix_ns) - (pair.ns - first.ns);
    if (std::abs(off) > std::abs(set_ns)) set_ns = off;
  }
  clock.set_ms = milliseconds(set_ns);
  return clock;
}

ProfileReport::Marks marks_of(const Profile& profile) {
  constexpr size_t kMostMarks = 100'000;
  ProfileReport::Marks marks{.events = static_cast<int64_t>(profile.marks.size()), .name = {}, .thread = {}, .ms = {}};
  for (size_t i = 0; i < std::min(profile.marks.size(), kMostMarks); ++i) {
    marks.name.push_back(profile.marks[i].name);
    marks.thread.push_back(profile.marks[i].thread);
    marks.ms.push_back(milliseconds(profile.marks[i].ns));
  }
  return marks;
}

TimelineEvents spans_of(const Profile& profile) {
  TimelineEvents spans;
  for (const ProfiledSpan& span : profile.spans) {
    spans.item.push_back(span.range);
    spans.thread.push_back(span.thread);
    spans.start_us.push_back(microseconds(span.start_ns));
    spans.duration_us.push_back(microseconds(span.duration_ns));
  }
  // The number of all events. `profile.spans` has only the first ones, up to a limit.
  size_t events = profile.runs.size();
  for (const ProfiledRange& marked : profile.ranges) events += marked.call_ns.size();
  spans.events = static_cast<int64_t>(std::max(events, profile.spans.size()));
  return spans;
}

MeasuredMemoryReport measured_memory_of(const MeasuredMemory& memory) {
  MeasuredMemoryReport report{
      .events = memory.num_events,
      .before = named_bytes(memory.before),
      .peak = {.ms = milliseconds(memory.peak_ns), .bytes = memory.peak_bytes, .classes = named_bytes(memory.at_peak)},
      .timeline = timeline_of(memory.timeline),
      .num_blocks = memory.blocks.size(),
      .blocks = blocks_of(memory.blocks),
      .refused = {}};
  for (size_t i = 0; i < memory.holders_at_peak.size(); ++i) {
    const MemoryHolding& holder = memory.holders_at_peak[i];
    if (i < kMaxHolders)
      report.peak.holders.push_back({holder.name, class_name(holder.memory_class), holder.size_bytes});
    else
      ++report.peak.more_holders, report.peak.more_holders_bytes += holder.size_bytes;
  }
  for (const MeasuredMemory::Refusal& refusal : memory.refused)
    report.refused.push_back({{refusal.holder, class_name(refusal.memory_class), refusal.size_bytes}, milliseconds(refusal.ns)});
  return report;
}

}  // namespace treadle::profile
