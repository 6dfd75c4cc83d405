#include "exec/placed/describe_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "exec/explain/run_shortage.h"
#include "exec/memory/shortage.h"
#include "exec/program/load_shortage.h"

namespace treadle::exec {
namespace {

using Memory = StreamPlan::Location::Memory;

class DevicesDescription {
 public:
  DevicesDescription(const PlacedMemory& memory, const PlacedValues& values, const Binding& binding, InstructionId failed)
      : memory_(memory), steps_(memory.steps()), values_(values), binding_(binding) {
    if (failed == kNoInstruction) return;
    for (const StepId s : steps_.plan().steps.ids())
      if (steps_[s].instruction == failed) at_ = s;
  }

  // Adds the values on the device to `live`. @return a line that sums them up; empty if the device holds nothing
  std::string device(int device, std::vector<LiveBytes>& live) const {
    size_t in_use = 0, held = 0, constant = 0;
    for (const LocationId l : steps_.plan().locations.ids()) {
      const StreamPlan::Location& location = steps_.location(l);
      if (location.device != device) continue;
      const size_t bytes = bytes_at(l);
      if (bytes == 0) continue;
      (location.memory == Memory::planned ? in_use : location.memory == Memory::held ? held : constant) += bytes;
      live.push_back({fmt::format("\"{}\" ({} on {})", name_of(location), kind_of(location), steps_.device(device).name()), bytes});
    }
    const size_t arena = memory_.arenas().size_bytes(device);
    if (arena + held + constant == 0) return {};
    return fmt::format("{}: arena {} bytes, of which {} {}; values apart from it {}, weights {}\n", steps_.device(device).name(), arena,
                       in_use, at_ ? "may be in use at this node" : "are planned", held, constant);
  }

  std::string remedy(int device) const {
    const auto planned = [&](IdSpan<BufferId, const size_t> sizes) { return memory_.arenas().planned_bytes(device, sizes); };
    const size_t now = planned(binding_.buffer_sizes());
    if (now == 0) return {};
    return describe_smaller_batch(steps_.program(), binding_, "the arena of " + std::string(steps_.device(device).name()), now, SIZE_MAX,
                                  [&](const std::vector<int64_t>& values) { return planned(binding_.buffer_sizes_for(values)); });
  }

 private:
  size_t bytes_at(LocationId l) const {
    const StreamPlan::Location& location = steps_.location(l);
    switch (location.memory) {
      case Memory::planned: return !at_ || may_be_in_use(location, *at_) ? binding_.buffer_sizes()[location.buffer] : 0;
      case Memory::held: return values_.held(l).is_tensor() ? values_.held(l).tensor().size_bytes() : 0;
      case Memory::constant: return memory_.has_constants() && memory_.constant(l).defined() ? memory_.constant(l).size_bytes() : 0;
      case Memory::given: break;
    }
    return 0;
  }

  bool may_be_in_use(const StreamPlan::Location& location, StepId s) const {
    const StreamPlan& plan = steps_.plan();
    auto is_before = [&](StepId use) { return plan.happens_before(use, s); };
    return !std::all_of(location.uses.begin(), location.uses.end(), is_before) && !plan.happens_before(s, location.uses.front());
  }

  const std::string& name_of(const StreamPlan::Location& location) const {
    const Program& program = steps_.program();
    if (location.slot != kNoSlot) return program.name(location.slot);
    return program.instructions()[program.buffers()[location.buffer].instruction].node->name;
  }

  const char* kind_of(const StreamPlan::Location& location) const {
    if (location.memory == Memory::constant) return "weights";
    if (location.slot == kNoSlot) return "scratch";
    return location.memory == Memory::held && steps_.slot(location.slot).is_output ? "output" : "activations";
  }

  const PlacedMemory& memory_;
  const PlacedSteps& steps_;
  const PlacedValues& values_;
  const Binding& binding_;
  std::optional<StepId> at_;  // the step that failed
};

}  // namespace

std::string describe_devices(const PlacedMemory& memory, const PlacedValues& values, const RunState& state, const RunControl& control,
                             InstructionId failed) {
  const PlacedSteps& steps = memory.steps();
  std::string text = failed != kNoInstruction ? describe_origin(*steps.program().instructions()[failed].node) : "";
  text += describe_account(control.memory.account());
  const DevicesDescription description(memory, values, state.binding(), failed);
  const int num_devices = static_cast<int>(steps.devices().size());
  std::vector<LiveBytes> live;
  for (int d = 0; d < num_devices; ++d) text += description.device(d, live);
  text += describe_largest(std::move(live));
  std::string remedies;
  for (int d = 0; d < num_devices; ++d)
    if (const std::string remedy = description.remedy(d); !remedy.empty())
      remedies += (remedies.empty() ? "to need less: " : "; ") + remedy;
  return remedies.empty() ? text : text + remedies + "\n";
}

}  // namespace treadle::exec
