#include "exec/placed/recorded_bulks.h"

#include <algorithm>
#include <utility>

#include "exec/run/run_control.h"
#include "graph/op_def.h"

namespace treadle::exec {

using Memory = StreamPlan::Location::Memory;

RecordedBulks::RecordedBulks(const PlacedMemory& memory, PlacedValues& values, const NodeRunner& nodes)
    : steps_(memory.steps()), memory_(memory), values_(values), nodes_(nodes) {}

// Returns false if the times of single nodes are wanted, because recorded work does not measure them. Also returns false for a bulk of one
// step, for which recording saves nothing.
bool RecordedBulks::may_record(std::span<const StepId> bulk, const Stream& queue) {
  const RunControl& control = nodes_.control();
  if (bulk.size() < 2 || !queue.device().records_work() || control.recording.recorder || control.counts_nodes) return false;
  return steps_.bulk_from(steps_.position_of(bulk.front())).size() == bulk.size() && bulk_of(bulk).is_recordable;
}

// A recorded kernel keeps the values that it read on the host while it was recorded. So its inputs on the host must be constants or follow
// from the extents. Random operators are not recorded, because each run needs new numbers.
bool RecordedBulks::is_recordable(const StreamPlan::Step& step) const {
  const Instruction& instruction = steps_.instruction(step);
  if (instruction.dynamic || !instruction.bodies.empty() || !instruction.node->op || !instruction.node->op->deterministic) return false;
  const auto inputs = steps_.inputs(step);
  const auto slots = steps_.program().operands(instruction);
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k] == kNoLocation || steps_.location(inputs[k]).device == steps_.device_of(step)) continue;
    const bool is_fixed = steps_.location(inputs[k]).memory == Memory::constant || steps_.slot(slots[k]).location == LocationKind::known;
    if (!is_fixed) return false;
  }
  return true;
}

RecordedBulks::Bulk& RecordedBulks::bulk_of(std::span<const StepId> bulk) {
  const auto [found, is_new] = bulks_.try_emplace(bulk.front());
  Bulk& made = found->second;
  if (!is_new) return made;
  made.is_recordable = std::all_of(bulk.begin(), bulk.end(), [&](StepId s) { return is_recordable(steps_[s]); });
  if (!made.is_recordable) return made;
  const auto is_outside = [&](const StreamPlan::Step& step, LocationId at) {
    return at != kNoLocation && steps_.location(at).device == steps_.device_of(step) && steps_.location(at).memory != Memory::planned;
  };
  for (const StepId s : bulk) {
    const StreamPlan::Step& step = steps_[s];
    for (const LocationId at : steps_.operands(step))
      if (is_outside(step, at)) made.outside.push_back(at);
    const auto outputs = steps_.outputs(step);
    if (std::any_of(outputs.begin(), outputs.end(), [&](LocationId at) { return is_outside(step, at); })) made.makers.push_back(s);
  }
  std::sort(made.outside.begin(), made.outside.end());
  made.outside.erase(std::unique(made.outside.begin(), made.outside.end()), made.outside.end());
  return made;
}

// Makes memory for the bulk's outputs, and stores in now_ the addresses of its values outside of arenas.
void RecordedBulks::look_at_memory(Bulk& bulk) {
  for (const StepId s : bulk.makers) values_.make_outputs(steps_[s]);
  now_.binding = nodes_.state().binding().generation();
  now_.arenas = memory_.arenas().generation();
  now_.addresses.clear();
  for (const LocationId at : bulk.outside) {
    const Datum found = values_.value(at, steps_.location(at).slot);
    now_.addresses.push_back(found.is_tensor() ? found.tensor().raw() : nullptr);
  }
}

bool RecordedBulks::submit_again(std::span<const StepId> steps, Stream& queue) {
  Bulk& bulk = bulk_of(steps);
  look_at_memory(bulk);
  const auto found = std::find_if(bulk.records.begin(), bulk.records.end(), [&](const Record& record) { return record.key == now_; });
  if (found == bulk.records.end()) return false;
  if (!queue.submit_again(*found->work)) {
    bulk.records.erase(found);
    return false;
  }
  values_.keep(bulk.outside, queue);
  bulk.records.splice(bulk.records.begin(), bulk.records, found);
  ++num_submitted_again_;
  return true;
}

void RecordedBulks::keep(std::span<const StepId> steps, std::unique_ptr<RecordedWork> work) {
  Bulk& bulk = bulk_of(steps);
  bulk.records.push_front({now_, std::move(work)});
  if (bulk.records.size() > kMostRecords) bulk.records.pop_back();
}

}  // namespace treadle::exec
