#include "core/record_filter.h"

namespace treadle {

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
  // Nodes end before their run does. What began within it is the run's, whoever named it.
  if (record.kind == RecordKind::run) {
    for (uint64_t start : strangers_) recording_.unknown += start >= record.start;
    strangers_.clear();
  }
  thread.records.push_back(record);
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
