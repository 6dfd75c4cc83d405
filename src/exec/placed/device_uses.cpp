#include "exec/placed/device_uses.h"

#include <algorithm>

namespace treadle::exec {

DeviceUses::DeviceUses(const PlacedSteps& steps, int device) : steps_(steps), at_(steps.size()), uses_(steps.plan().locations.size()) {
  SharedPacked shared;
  for (size_t position = 0; position < at_.size(); ++position) {
    const StreamPlan::Step& step = steps[steps.at(position)];
    std::vector<UnitId>& used = at_[position];
    if (step.is_copy()) {
      for (const LocationId side : {step.source, step.target})
        if (steps.location(side).device == device) used.push_back(unit_of(side));
    } else {
      add_kernel(step, device, shared, used);
    }
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    for (const UnitId unit : used) uses_[unit].push_back(static_cast<int32_t>(position));
  }
}

void DeviceUses::add_kernel(const StreamPlan::Step& step, int device, SharedPacked& shared, std::vector<UnitId>& used) {
  auto add = [&](LocationId at) {
    if (at != kNoLocation && steps_.location(at).device == device) used.push_back(unit_of(at));
  };
  const Instruction& instruction = steps_.instruction(step);
  const auto operands = steps_.operands(step);
  for (size_t k = 0; k < operands.size(); ++k)
    if (!has_own_copy(instruction, k)) add(operands[k]);
  add(step.scratch);
  const bool has_packed = instruction.packed && instruction.node->bodies.empty();
  if (steps_.device_of(step) == device && (instruction.versioned >= 0 || has_packed)) used.push_back(packed_unit(instruction, shared));
}

// Kernels that share a packed block of weights share its unit. A block packed from parameters belongs to one kernel, which packs it anew
// for every version of the parameters.
UnitId DeviceUses::packed_unit(const Instruction& instruction, SharedPacked& shared) {
  if (instruction.versioned < 0) {
    const auto [found, is_new] = shared.try_emplace(instruction.packed.get(), uses_.next_id());
    if (!is_new) return found->second;
  }
  packed_for_.push_back(&instruction);
  return uses_.add({});
}

bool DeviceUses::is_used_at(size_t position, UnitId unit) const {
  return std::binary_search(at_[position].begin(), at_[position].end(), unit);
}

int64_t DeviceUses::next_use(UnitId unit, size_t position, bool lasting) const {
  const std::vector<int32_t>& uses = uses_[unit];
  const auto next = std::upper_bound(uses.begin(), uses.end(), static_cast<int32_t>(position));
  if (next != uses.end()) return *next;
  return lasting && !uses.empty() ? static_cast<int64_t>(at_.size()) + uses.front() : INT64_MAX;
}

size_t DeviceUses::size_bytes(UnitId unit, const Binding& binding) const {
  if (is_packed(unit)) {
    const PackedState* const packed = binding.packed(*packed_for_[index_of(unit) - num_locations()]);
    return packed ? packed->size_bytes() : 0;
  }
  const StreamPlan::Location& found = location(unit);
  if (found.memory == StreamPlan::Location::Memory::planned) return binding.buffer_sizes()[found.buffer];
  const Slot& slot = steps_.slot(found.slot);
  if (!slot.static_shape || slot.dtype == DType::string) return 0;
  return binding.bytes_of(found.slot);
}

}  // namespace treadle::exec
