#include "profile/analysis/report_parts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "profile/analysis/statistics.h"

namespace treadle::profile {
namespace {

constexpr size_t kMaxPoints = 4000, kMaxHolders = 200, kMaxBlocks = 200;

Document class_bytes_json(const MeasuredMemory::ClassBytes& bytes) {
  Document json = Document::object();
  for (size_t c = 0; c < kNumMemoryClasses; ++c)
    if (bytes[c] > 0) json[std::string(memory_class_name(static_cast<MemoryClass>(c)))] = bytes[c];
  return json;
}

size_t total_of(const MeasuredMemory::ClassBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), size_t{0}); }

// Of each stretch of points the one with the most bytes: no peak is lost.
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

Document timeline_json(const std::vector<MeasuredMemory::Point>& points) {
  const auto kept = thinned(points);
  Document json, ms = Document::array();
  for (const auto* point : kept) ms.push_back(milliseconds(point->ns));
  json["points"] = points.size();
  json["ms"] = std::move(ms);
  for (size_t c = 0; c < kNumMemoryClasses; ++c) {
    if (std::all_of(kept.begin(), kept.end(), [c](const auto* point) { return point->bytes[c] == 0; })) continue;
    Document& bytes = json["bytes"][std::string(memory_class_name(static_cast<MemoryClass>(c)))] = Document::array();
    for (const auto* point : kept) bytes.push_back(point->bytes[c]);
  }
  return json;
}

Document holding_json(const std::string& name, MemoryClass memory_class, size_t bytes) {
  Document json;
  if (!name.empty()) json["name"] = name;
  json["class"] = memory_class_name(memory_class);
  json["bytes"] = bytes;
  return json;
}

// The largest, in the order in which they were taken.
Document blocks_json(const std::vector<ProfiledBlock>& blocks) {
  std::vector<const ProfiledBlock*> largest;
  for (const ProfiledBlock& block : blocks) largest.push_back(&block);
  if (largest.size() > kMaxBlocks) {
    std::nth_element(largest.begin(), largest.begin() + kMaxBlocks, largest.end(),
                     [](const auto* a, const auto* b) { return a->size_bytes > b->size_bytes; });
    largest.resize(kMaxBlocks);
  }
  std::sort(largest.begin(), largest.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  Document list = Document::array();
  for (const ProfiledBlock* block : largest) {
    Document json = holding_json(block->holder, block->memory_class, block->size_bytes);
    json["id"] = block->id;
    json["taken_ms"] = milliseconds(block->taken_ns);
    if (block->returned_ns) json["returned_ms"] = milliseconds(*block->returned_ns);
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

double rounded(double value, double digits) { return std::round(value * digits) / digits; }
double milliseconds(double ns) { return rounded(ns / 1e6); }

bool computes_in_float32(const ProfiledNode& node) {
  const auto hold = [](const std::vector<ProfiledOperand>& operands) {
    return std::all_of(operands.begin(), operands.end(), [](const ProfiledOperand& operand) {
      return operand.name.empty() || (operand.dtype != DType::float64 && bits_of(operand.dtype) >= 32);  // indices may be integers
    });
  };
  return hold(node.inputs) && hold(node.outputs);
}

Document summary_json(const std::vector<double>& ns) {
  const Summary s = summarise(ns);
  Document json{{"median", milliseconds(s.median)}};
  if (s.interval) json["interval"] = {milliseconds(s.interval->first), milliseconds(s.interval->second)};
  json.update(
      Document{{"p10", milliseconds(s.p10)}, {"p90", milliseconds(s.p90)}, {"min", milliseconds(s.min)}, {"max", milliseconds(s.max)}});
  return json;
}

Document ranges_json(const Profile& profile) {
  Document list = Document::array();
  for (const ProfiledRange& range : profile.ranges) {
    Document json{{"name", range.name}};
    if (range.parent >= 0) json["parent"] = range.parent;
    if (range.python) json["python"] = true;
    json["calls"] = range.call_ns.size();
    json["ms"] = summary_json(range.call_ns);
    json["total_ms"] = milliseconds(std::accumulate(range.call_ns.begin(), range.call_ns.end(), 0.0));
    json["self_ms"] = milliseconds(range.self_ns);
    json["runs_ms"] = milliseconds(range.run_ns);
    list.push_back(std::move(json));
  }
  return list;
}

Document load_json(const Profile& profile) {
  struct Sum {
    const ProfiledPhase* first;
    int32_t parent;
    int64_t calls = 0;
    double ns = 0;
  };
  std::vector<Sum> sums;
  std::vector<int32_t> sum_of;  // per phase
  for (const ProfiledPhase& phase : profile.load) {
    const int32_t parent = phase.parent >= 0 ? sum_of[static_cast<size_t>(phase.parent)] : -1;
    auto sum = std::find_if(sums.begin(), sums.end(), [&](const Sum& s) { return s.parent == parent && s.first->name == phase.name; });
    if (sum == sums.end()) sum = sums.insert(sums.end(), {&phase, parent});
    ++sum->calls;
    sum->ns += phase.duration_ns;
    sum_of.push_back(static_cast<int32_t>(sum - sums.begin()));
  }
  Document list = Document::array();
  for (const Sum& sum : sums) {
    Document json{{"name", sum.first->name}};
    if (sum.parent >= 0) json["parent"] = sum.parent;
    json["calls"] = sum.calls;
    json["start_ms"] = milliseconds(sum.first->start_ns);
    json["ms"] = milliseconds(sum.ns);
    list.push_back(std::move(json));
  }
  return list;
}

Document pool_json(const Profile& profile) {
  Document list = Document::array();
  for (const ProfiledPoolThread& thread : profile.pool) {
    const double all = std::accumulate(thread.state_ns.begin(), thread.state_ns.end(), 0.0);
    Document states;
    for (size_t s = 0; s < thread.state_ns.size(); ++s)
      states[ProfiledPoolThread::kStateNames[s]] = rounded(all > 0 ? thread.state_ns[s] / all : 0);
    list.push_back({{"thread", thread.thread},
                    {"name", profile.threads[static_cast<size_t>(thread.thread)]},
                    {"calls", thread.calls},
                    {"ms", milliseconds(all)},
                    {"states", std::move(states)}});
  }
  return list;
}

Document clock_json(const Profile& profile) {
  Document pairs = Document::array();
  double set_ns = 0;
  const ProfiledClockPair& first = profile.clock.front();
  for (const ProfiledClockPair& pair : profile.clock) {
    pairs.push_back({milliseconds(pair.ns), pair.unix_ns});
    const double off = static_cast<double>(pair.unix_ns - first.unix_ns) - (pair.ns - first.ns);
    if (std::abs(off) > std::abs(set_ns)) set_ns = off;
  }
  return {{"pairs", std::move(pairs)}, {"set_ms", milliseconds(set_ns)}};
}

Document marks_json(const Profile& profile) {
  constexpr size_t kMostMarks = 100'000;
  Document name = Document::array(), thread = Document::array(), ms = Document::array();
  for (size_t i = 0; i < std::min(profile.marks.size(), kMostMarks); ++i) {
    name.push_back(profile.marks[i].name);
    thread.push_back(profile.marks[i].thread);
    ms.push_back(milliseconds(profile.marks[i].ns));
  }
  return {{"events", profile.marks.size()}, {"name", std::move(name)}, {"thread", std::move(thread)}, {"ms", std::move(ms)}};
}

Document spans_json(const Profile& profile) {
  Document range = Document::array(), thread = Document::array(), start = Document::array(), duration = Document::array();
  for (const ProfiledSpan& span : profile.spans) {
    range.push_back(span.range);
    thread.push_back(span.thread);
    start.push_back(rounded(span.start_ns / 1e3, 1000));
    duration.push_back(rounded(span.duration_ns / 1e3, 1000));
  }
  // The first of them: how many there were is known.
  size_t events = profile.runs.size();
  for (const ProfiledRange& marked : profile.ranges) events += marked.call_ns.size();
  return {{"events", std::max(events, profile.spans.size())},
          {"range", range},
          {"thread", thread},
          {"start_us", start},
          {"duration_us", duration}};
}

Document measured_memory_json(const MeasuredMemory& memory) {
  Document holders = Document::array(), refused = Document::array();
  size_t rest_bytes = 0;
  for (size_t i = 0; i < memory.holders_at_peak.size(); ++i) {
    const auto& holder = memory.holders_at_peak[i];
    if (i < kMaxHolders)
      holders.push_back(holding_json(holder.name, holder.memory_class, holder.size_bytes));
    else
      rest_bytes += holder.size_bytes;
  }
  for (const MeasuredMemory::Refusal& refusal : memory.refused) {
    refused.push_back(holding_json(refusal.holder, refusal.memory_class, refusal.size_bytes));
    refused.back()["ms"] = milliseconds(refusal.ns);
  }
  Document peak{{"ms", milliseconds(memory.peak_ns)},
                {"bytes", memory.peak_bytes},
                {"classes", class_bytes_json(memory.at_peak)},
                {"holders", std::move(holders)}};
  if (memory.holders_at_peak.size() > kMaxHolders) {
    peak["more_holders"] = memory.holders_at_peak.size() - kMaxHolders;
    peak["more_holders_bytes"] = rest_bytes;
  }
  return {{"events", memory.num_events},
          {"before", class_bytes_json(memory.before)},
          {"peak", std::move(peak)},
          {"timeline", timeline_json(memory.timeline)},
          {"num_blocks", memory.blocks.size()},
          {"blocks", blocks_json(memory.blocks)},
          {"refused", std::move(refused)}};
}

}  // namespace treadle::profile
