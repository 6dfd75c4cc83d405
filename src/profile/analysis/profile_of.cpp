#include "profile/analysis/profile_of.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "profile/analysis/analysis.h"
#include "profile/analysis/device_rows.h"
#include "profile/analysis/layer_spans.h"
#include "profile/analysis/memory_recording.h"
#include "profile/analysis/ranges.h"
#include "profile/model/trace.h"

namespace treadle::profile {
namespace {

// Returns a trace row with the phases of loading the model. The row is empty if loading began over a minute before the profile, because
// the trace would begin with a long gap.
Recording::Thread row_of_load(const std::vector<LoadPhase>& phases, Recording& recording) {
  constexpr double kNearNs = 60e9;
  Recording::Thread row{static_cast<uint32_t>(recording.threads.size()), 0, "load", {}};
  if (phases.empty() || recording.to_ns(phases.front().start) < -kNearNs) return row;
  for (const LoadPhase& phase : phases) {
    row.records.push_back({phase.start, phase.end, 0, 0, static_cast<uint32_t>(recording.names.size()), RecordKind::compile, 0});
    recording.names.push_back({phase.name, {}, {}});
  }
  return row;
}

// If events were lost, adds a trace row that shows when. (Tables and pages only say how many were lost.)
void add_lost(Recording& recording) {
  if (recording.dropped == 0) return;
  Recording::Thread row{static_cast<uint32_t>(recording.threads.size()), 0, "events lost", {}};
  const auto name = static_cast<uint32_t>(recording.names.size());
  recording.names.push_back({fmt::format("{} events lost", recording.dropped), {}, {}});
  const auto add = [&](uint64_t at) {
    at = std::max(at, recording.start_ticks);
    row.records.push_back({at, at, 0, 0, name, RecordKind::instant, 0});
  };
  for (const auto& [from, until] : recording.gaps) add(from);
  if (row.records.empty()) add(recording.complete_from > 0 ? recording.complete_from : recording.complete_until);
  recording.threads.push_back(std::move(row));
}

}  // namespace

PlanFilter filter_of(const ProfilePlan& plan, uint64_t from) {
  PlanFilter made;
  RecordFilter& filter = made.filter;
  filter.from = from;
  if (plan.memory) filter.account = plan.account;
  filter.kernel_phases = plan.kernel_phases;
  filter.python_calls = plan.python_calls;
  auto add = [&](uint32_t record, std::string text) {
    filter.names.emplace(record, static_cast<uint32_t>(filter.texts.size()));
    filter.texts.push_back({std::move(text), {}, {}});
  };
  add(plan.run, "run");
  add(plan.initialization, "session_initialization");
  for (const auto& [record, node] : plan.node_of) {
    made.node_of.emplace(static_cast<uint32_t>(filter.texts.size()), node);
    const ProfiledNode& of = plan.profile.nodes[static_cast<size_t>(node)];
    add(record, of.op_type + " " + of.name);
  }
  return made;
}

Profile profile_of(ProfilePlan plan, Recording recording, std::unordered_map<uint32_t, int32_t> node_of,
                   std::vector<std::pair<uint64_t, uint64_t>> intervals) {
  Profile profile = std::move(plan.profile);
  auto made = std::make_shared<ProfileTrace>();
  made->recording = std::move(recording);
  made->node_of = std::move(node_of);
  made->device_rows = std::move(plan.device_rows);
  for (size_t i = 0; i < profile.nodes.size(); ++i)
    if (const DeviceRow* row = made->device_rows.of(static_cast<int32_t>(i))) profile.nodes[i].device = row->device;
  add_device_rows(*made);
  made->run = 0;
  made->intervals = std::move(intervals);
  for (const LoadPhase& phase : plan.load)
    profile.load.push_back({.name = phase.name,
                            .parent = phase.parent,
                            .start_ns = static_cast<double>(phase.start - plan.load.front().start) * made->recording.ns_per_tick,
                            .duration_ns = static_cast<double>(phase.end - phase.start) * made->recording.ns_per_tick});
  made->load = row_of_load(plan.load, made->recording);
  made->layers = name_layers(profile.nodes, made->recording);
  profile.trace = made;
  const ProfileTrace& trace = *made;
  for (const ClockAnchor& anchor : trace.recording.anchors) profile.clock.push_back({trace.recording.to_ns(anchor.ticks), anchor.unix_ns});
  analyze(trace.recording, {.run = trace.run, .node = trace.node_of, .intervals = trace.intervals}, profile, &made->waited_ns);
  add_ranges(trace, profile);
  add_marks(trace, profile);
  if (plan.memory) {
    RecordedMemory recorded = measure_memory(trace, profile, plan.memory_before, std::move(plan.held));
    add_memory_counters(made->recording, recorded.counters);
    profile.measured_memory = std::move(recorded.memory);
  }
  add_lost(made->recording);
  profile.ns_per_event = plan.ns_per_event;
  return profile;
}

}  // namespace treadle::profile
